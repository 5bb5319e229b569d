"""Qwen3 draft layers (q/k norm, SwiGLU, rotary positions), built from transformers' own modules.

The only change against a Qwen3 decoder layer is context injection: keys and values of the target's context stand
before those of the block, K = [W_K H_ctx ; W_K H_d] (DFlash; design.md, "Context").
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm, Qwen3RotaryEmbedding, rotate_half

# (q [.., G, heads, d], block k, block v, scale) -> attention output of q's shape
Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]


class Rotary(nn.Module):
    """Cosine and sine tables [.., d] for integer positions [..]; parameters come from the target's config."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.table = Qwen3RotaryEmbedding(config)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Rotary:
        """Move, but never round: frequencies in bf16 would turn the positions of long contexts (pitfall 32)."""
        return super()._apply(lambda x: x.to(fn(x).device), recurse)

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Tables in x's dtype, one row a position, with an axis for the heads: [.., 1, d]."""
        cos, sin = self.table(x, positions.reshape(1, -1))
        return cos.view(*positions.shape, 1, -1), sin.view(*positions.shape, 1, -1)


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of x [.., heads, d] by tables of shape [.., 1, d]."""
    cos, sin = tables
    return (x * cos + rotate_half(x) * sin).to(x.dtype)


class Attention(nn.Module):
    """Projections and norms of one layer; where keys come from and who sees whom is the caller's business."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        assert config.head_dim is not None, "draft_config and the native layout always state it"
        self.head_dim = config.head_dim
        self.scale = self.head_dim**-0.5
        width, kv_width = (
            config.num_attention_heads * self.head_dim,
            (config.num_key_value_heads or config.num_attention_heads) * self.head_dim,
        )
        self.q_proj = nn.Linear(config.hidden_size, width, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=config.attention_bias)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=config.attention_bias)
        self.q_norm = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def queries(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """[.., H] -> normed and rotated queries [.., heads, d]."""
        return rotate(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim))), tables)

    def keys_values(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """[.., H] -> normed and rotated keys [.., kv, d] and values [.., kv, d]."""
        keys = self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.head_dim)))
        return rotate(keys, tables), self.v_proj(x).unflatten(-1, (-1, self.head_dim))


class DecoderLayer(nn.Module):
    """One draft layer over block slots [.., G, H]."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Slots x [.., G, H] -> [.., G, H]; ``attend`` brings the context's keys and values."""
        normed = self.input_layernorm(x)
        queries = self.self_attn.queries(normed, tables)
        keys, values = self.self_attn.keys_values(normed, tables)
        attended = attend(queries, keys, values, self.self_attn.scale)
        x = x + self.self_attn.o_proj(attended.flatten(-2))
        return x + self.mlp(self.post_attention_layernorm(x))


RMSNorm = Qwen3RMSNorm
