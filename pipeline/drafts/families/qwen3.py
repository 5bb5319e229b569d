"""Qwen3 draft layers: queries and keys are normed over each head. The default for every target but Gemma."""

from __future__ import annotations

from functools import partial
from typing import Any

from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm, Qwen3RotaryEmbedding

from pipeline.drafts.families import layers

NAME = "Qwen3"
RMSNorm = Qwen3RMSNorm


class Rotary(layers.Rotary):
    """See ``layers.Rotary``."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__(Qwen3RotaryEmbedding(config))


class DecoderLayer(layers.DecoderLayer):
    """Layer ``index`` of a draft; ``width`` as in ``layers.Attention``."""

    def __init__(self, config: Qwen3Config, index: int, width: int | None = None) -> None:
        assert config.head_dim is not None and config.layer_types is not None, "config_fields states them"
        norm = partial(Qwen3RMSNorm, eps=config.rms_norm_eps)
        kv_heads = config.num_key_value_heads or config.num_attention_heads
        attention = layers.Attention(
            config, width or config.hidden_size, config.head_dim, kv_heads, partial(norm, config.head_dim)
        )
        hidden_norm = partial(norm, config.hidden_size)
        super().__init__(attention, Qwen3MLP(config), hidden_norm, config.layer_types[index])


def make_config(values: dict[str, Any]) -> Qwen3Config:
    """The config that ``values`` describe."""
    return Qwen3Config.from_dict(values)


def embedding_scale(config: Qwen3Config) -> float:
    """What embeddings are multiplied with."""
    return 1.0


def config_fields(target: Any, depth: int, sliding_window: int | None) -> dict[str, Any]:
    """Fields of the draft's config that this family needs beside the shared ones."""
    own = layers.full_layer(target)
    return {
        "head_dim": getattr(own, "head_dim", None) or target.hidden_size // target.num_attention_heads,
        "num_key_value_heads": getattr(own, "num_key_value_heads", None) or target.num_attention_heads,
        "hidden_act": getattr(target, "hidden_act", None) or target.hidden_activation,
        "rope_parameters": layers.flat_rope(target.rope_parameters),
        "layer_types": layers.layer_types(depth, sliding_window),
        "use_sliding_window": sliding_window is not None,
        "sliding_window": sliding_window,
        "max_window_layers": 0 if sliding_window is not None else depth,
    }
