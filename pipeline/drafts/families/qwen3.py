"""Qwen3 draft layers, with norms of queries and keys over each head. They are the default, except for Gemma."""

from __future__ import annotations

from functools import partial
from typing import Any

from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm, Qwen3RotaryEmbedding

from pipeline.drafts.families import layers

NAME = "Qwen3"
RMSNorm = Qwen3RMSNorm
embedding_scale = layers.embedding_scale
make_config = Qwen3Config.from_dict
Rotary = partial(layers.Rotary, Qwen3RotaryEmbedding)


class DecoderLayer(layers.DecoderLayer):
    """Layer ``index`` of a draft. ``width`` is described in ``layers.Attention``."""

    def __init__(self, config: Qwen3Config, index: int, width: int | None = None) -> None:
        assert config.head_dim is not None and config.layer_types is not None, "config_fields sets them"
        norm = partial(Qwen3RMSNorm, eps=config.rms_norm_eps)
        hidden_norm, head_norm = partial(norm, config.hidden_size), partial(norm, config.head_dim)
        kv_heads = config.num_key_value_heads or config.num_attention_heads
        width = width or config.hidden_size
        attention = layers.Attention(config, width, config.head_dim, kv_heads, head_norm)
        super().__init__(attention, Qwen3MLP(config), hidden_norm, config.layer_types[index])


def config_fields(target: Any, depth: int, sliding_window: int | None) -> dict[str, object]:
    """This family's fields of the draft's config, besides the shared ones."""
    full = sliding_window is None
    own = {"use_sliding_window": not full, "max_window_layers": depth if full else 0}
    return layers.standard_fields(target, depth, sliding_window) | own
