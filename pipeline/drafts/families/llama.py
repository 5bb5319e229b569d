"""Llama draft layers: like Qwen3's, but without norms over the heads. The original Eagle3 has one such layer."""

from __future__ import annotations

from functools import partial
from typing import Any

from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding

from pipeline.drafts.families import layers

NAME = "Llama"
RMSNorm = LlamaRMSNorm
embedding_scale = layers.embedding_scale
make_config = LlamaConfig.from_dict
Rotary = partial(layers.Rotary, LlamaRotaryEmbedding)


class DecoderLayer(layers.DecoderLayer):
    """Layer ``index`` of a draft. ``width`` is described in ``layers.Attention``."""

    def __init__(self, config: LlamaConfig, index: int, width: int | None = None) -> None:
        head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
        kv_heads = config.num_key_value_heads or config.num_attention_heads
        attention = layers.Attention(config, width or config.hidden_size, head_dim, kv_heads)
        hidden_norm = partial(LlamaRMSNorm, config.hidden_size, eps=config.rms_norm_eps)
        kind = (getattr(config, "layer_types", None) or ["full_attention"] * (index + 1))[index]
        super().__init__(attention, LlamaMLP(config), hidden_norm, kind)


def config_fields(target: Any, depth: int, sliding_window: int | None) -> dict[str, object]:
    """This family's fields of the draft's config, besides the shared ones."""
    return layers.standard_fields(target, depth, sliding_window) | {"mlp_bias": False}
