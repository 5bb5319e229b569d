"""What the decoder layers of all families share: projections, residuals, rotary positions.

The only difference from a target's decoder layer is context injection: keys and values of the target's context come
before those of the block, K = [W_K H_ctx ; W_K H_d] (DFlash; design.md, "Context"). A family is a file beside this one
that defines ``NAME``, ``RMSNorm``, ``Rotary``, ``DecoderLayer``, ``embedding_scale``, ``config_fields`` and
``make_config``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

# (q [.., G, heads, d], block k, block v, scale) -> attention output of q's shape
Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]
# Rotary settings that describe the target's own heads.
FOR_THE_TARGET = ("partial_rotary_factor", "mrope_section", "mrope_interleaved")
THETA = 10000.0  # base of the rotary positions if the target has none
Tables = tuple[Tensor, Tensor]  # cosine and sine, [.., 1, d]
MakeNorm = Callable[[], nn.Module]


class Rotary(nn.Module):
    """Cosine and sine tables for integer positions; ``table`` is a rotary class of transformers."""

    def __init__(self, table: Callable[[Any], nn.Module], config: Any) -> None:
        super().__init__()
        self.table = table(config)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Rotary:
        """Move to another device but never round: bf16 frequencies would be wrong in long contexts (pitfall 32)."""
        move: Callable[..., Rotary] = super()._apply
        return move(lambda x: x.to(fn(x).device), recurse)

    def forward(self, x: Tensor, positions: Tensor, kind: str) -> Tables:
        """Tables [.., 1, d] in x's dtype for positions [..] in a layer of type ``kind``; 1 is the heads' axis."""
        cos, sin = self.rows(x, positions.reshape(1, -1), kind)
        return cos.view(*positions.shape, 1, -1), sin.view(*positions.shape, 1, -1)

    def rows(self, x: Tensor, positions: Tensor, kind: str) -> Tables:
        """Cosine and sine [1, n, d] of positions [1, n]. Families whose layer types differ override this."""
        tables: Tables = self.table(x, positions)
        return tables


def rotate(x: Tensor, tables: Tables) -> Tensor:
    """x [.., heads, d] with the rotary embedding of tables [.., 1, d]."""
    cos, sin = tables
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


class Attention(nn.Module):
    """Projections and norms of one layer. The caller decides what the keys are and which of them a query sees.

    ``width`` is the input's width: the hidden size, or twice the hidden size for [embedding; state]. ``norm`` makes the
    norms of queries and keys over a head. With ``shared_values``, the values are the keys' projection (no ``v_proj``).
    """

    def __init__(
        self, config: Any, width: int, head_dim: int, kv_heads: int, norm: MakeNorm = nn.Identity,
        scale: float | None = None, shared_values: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.head_dim = head_dim
        self.scale = head_dim**-0.5 if scale is None else scale
        heads, bias = config.num_attention_heads, bool(config.attention_bias)
        self.q_proj = nn.Linear(width, heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(width, kv_heads * head_dim, bias=bias)
        self.v_proj = None if shared_values else nn.Linear(width, kv_heads * head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * head_dim, config.hidden_size, bias=bias)
        self.q_norm, self.k_norm = norm(), norm()
        self.v_norm: nn.Module = nn.Identity()

    def queries(self, x: Tensor, tables: Tables) -> Tensor:
        """Normed and rotated queries [.., heads, d] from x [.., width]."""
        return rotate(self.q_norm(self._heads(self.q_proj(x))), tables)

    def keys_values(self, x: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
        """Normed and rotated keys [.., kv, d], and values [.., kv, d], from x [.., width]."""
        keys = self._heads(self.k_proj(x))
        values = keys if self.v_proj is None else self._heads(self.v_proj(x))
        return rotate(self.k_norm(keys), tables), self.v_norm(values)

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, self.head_dim))
        return heads


class DecoderLayer(nn.Module):
    """One pre-norm layer over slots [.., G, H]; ``kind`` is its entry in ``layer_types``."""

    def __init__(self, attention: Attention, mlp: nn.Module, norm: MakeNorm, kind: str) -> None:
        super().__init__()
        self.kind, self.self_attn, self.mlp = kind, attention, mlp
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()

    def forward(
        self, x: Tensor, tables: Tables, attend: Attend, attention_input: Tensor | None = None
    ) -> Tensor:
        """The layer's output [.., G, H] for slots x [.., G, H]; ``attend`` adds the context's keys and values.

        If ``attention_input`` [.., G, width] is given, the projections read it instead of the normed x.
        """
        normed = self.input_layernorm(x) if attention_input is None else attention_input
        queries = self.self_attn.queries(normed, tables)
        keys, values = self.self_attn.keys_values(normed, tables)
        attended = attend(queries, keys, values, self.self_attn.scale)
        return self.feed_forward(self.join(x, self.self_attn.o_proj(attended.flatten(-2))))

    def join(self, x: Tensor, attended: Tensor) -> Tensor:
        """The residual after attention, [.., G, H]."""
        return x + attended

    def feed_forward(self, x: Tensor) -> Tensor:
        """The second half of the layer: the MLP and its residual."""
        out: Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + out


def layer_types(depth: int, sliding_window: int | None) -> list[str]:
    """``layer_types`` of a draft: all layers see the whole context, or ``sliding_window`` positions if it is set."""
    return ["full_attention" if sliding_window is None else "sliding_attention"] * depth


def full_layer(target: Any) -> Any:
    """The settings of the target's full-attention layers. In Gemma 4, their heads differ from those of other layers."""
    kinds = list(getattr(target, "layer_types", None) or [])
    own = getattr(target, "per_layer_config", None)
    return own[kinds.index("full_attention")] if own is not None and "full_attention" in kinds else target


def hidden_act(target: Any) -> str:
    """The activation of the draft's MLPs: the target's, or SiLU if the target's MLPs are of another kind."""
    return getattr(target, "hidden_act", None) or getattr(target, "hidden_activation", None) or "silu"


def standard_fields(target: Any, depth: int, sliding_window: int | None) -> dict[str, object]:
    """``config_fields`` for families whose layers all have the same heads and rotary settings."""
    own = full_layer(target)
    return {
        "head_dim": getattr(own, "head_dim", None) or target.hidden_size // target.num_attention_heads,
        "num_key_value_heads": getattr(own, "num_key_value_heads", None) or target.num_attention_heads,
        "hidden_act": hidden_act(target),
        "rope_parameters": flat_rope(getattr(target, "rope_parameters", None)),
        "layer_types": layer_types(depth, sliding_window),
        "sliding_window": sliding_window,
    }


def embedding_scale(config: Any) -> float:
    """The factor of the embeddings: most families have none."""
    return 1.0


def flat_rope(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """A target's rotary settings as one flat dictionary; if they are nested, those of its full-attention layers.

    A partial rotary factor is left out, because it describes the target's heads and not the draft's. The sections of
    multimodal positions are left out too: in text, all of them count the tokens. A target without rotary positions
    (Nemotron-H, Kimi-Linear) gives the plain ones.
    """
    values = dict(parameters or {})
    for name in ("full_attention", "main"):  # Gemma 3 and 4; DeepSeek-V4
        if isinstance(values.get(name), dict):
            values = dict(values[name])
    if values.get("rope_type") == "proportional":  # Gemma 4's partial rotary positions
        values = {"rope_type": "default", "rope_theta": values["rope_theta"]}
    kept = {k: v for k, v in values.items() if k not in FOR_THE_TARGET and v is not None}
    return {"rope_type": "default", "rope_theta": THETA} | kept
