"""Gemma 4 draft layers.

They have attention scale 1, normed values, further norms after attention and MLP, a scalar per layer, and scaled
embeddings. Keys and values share a projection if those of the target do.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm, Gemma4TextMLP, Gemma4TextRotaryEmbedding

from pipeline.drafts.families import layers

NAME = "Gemma4"
RMSNorm = Gemma4RMSNorm


class Rotary(layers.Rotary):
    """Cosine and sine tables that differ by layer type."""

    def __init__(self, config: Gemma4TextConfig) -> None:
        super().__init__(Gemma4TextRotaryEmbedding, config)

    def rows(self, x: Tensor, positions: Tensor, kind: str) -> layers.Tables:
        """See ``layers.Rotary.rows``."""
        tables: layers.Tables = self.table(x, positions, kind)
        return tables


class DecoderLayer(layers.DecoderLayer):
    """Layer ``index`` of a draft. ``width`` is described in ``layers.Attention``."""

    def __init__(self, config: Gemma4TextConfig, index: int, width: int | None = None) -> None:
        assert config.layer_types is not None, "transformers sets it"
        kind, own = config.layer_types[index], config.per_layer_config[index]
        norm = partial(Gemma4RMSNorm, eps=config.rms_norm_eps)
        attention = layers.Attention(
            config, width or config.hidden_size, own.head_dim, own.num_key_value_heads,
            partial(norm, own.head_dim), scale=1.0,
            shared_values=config.attention_k_eq_v and kind == "full_attention",
        )  # fmt: skip
        attention.v_norm = norm(own.head_dim, with_scale=False)
        hidden_norm = partial(norm, config.hidden_size)
        super().__init__(attention, Gemma4TextMLP(config, index), hidden_norm, kind)
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = hidden_norm(), hidden_norm()
        self.layer_scalar = nn.Buffer(torch.ones(1))

    def join(self, x: Tensor, attended: Tensor) -> Tensor:
        """See ``layers.DecoderLayer.join``. The output of attention is normed before it is added."""
        normed: Tensor = self.post_attention_layernorm(attended)
        return x + normed

    def feed_forward(self, x: Tensor) -> Tensor:
        """The MLP with a norm before and a norm after it; the layer's scalar multiplies the sum."""
        out: Tensor = self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return (x + out) * self.layer_scalar


def make_config(values: dict[str, Any]) -> Gemma4TextConfig:
    """The config that ``values`` describe; they may have the flat fields that transformers 5.10 wrote."""
    config = Gemma4TextConfig.from_dict(values | {"layer_types": list(values["layer_types"])})
    config.layer_types = list(values["layer_types"])  # transformers would make the last layer a full one
    return config


def embedding_scale(config: Gemma4TextConfig) -> float:
    """The factor of the embeddings."""
    return float(config.hidden_size**0.5)


def config_fields(target: Any, depth: int, sliding_window: int | None) -> dict[str, object]:
    """This family's fields of the draft's config, besides the shared ones: those of full-attention layers."""
    own = layers.full_layer(target)
    head_dim = getattr(own, "head_dim", None) or target.hidden_size // target.num_attention_heads
    kv_heads = own.num_key_value_heads or target.num_attention_heads
    return {
        "head_dim": head_dim,
        "global_head_dim": head_dim,
        "num_key_value_heads": kv_heads,
        "num_global_key_value_heads": kv_heads,
        "attention_k_eq_v": bool(getattr(target, "attention_k_eq_v", False)),
        "hidden_activation": layers.hidden_act(target),
        "rope_parameters": _nested_rope(getattr(target, "rope_parameters", None) or {}),
        "layer_types": layers.layer_types(depth, sliding_window),
        "sliding_window": sliding_window or 0,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "enable_moe_block": False,
        "use_double_wide_mlp": False,
    }


def _nested_rope(parameters: Mapping[str, Any]) -> dict[str, object]:
    """Rotary settings by layer type. A target with flat settings has the same for both types."""
    nested = {k: dict(v) for k, v in parameters.items() if isinstance(v, dict)}
    flat = nested.get("full_attention") or layers.flat_rope(parameters)
    return {"full_attention": flat, "sliding_attention": nested.get("sliding_attention", flat)}
