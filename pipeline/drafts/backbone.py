"""The parallel backbone of block drafters (DFlash, DSpark): one pass gives the states of all slots of a block.

Shapes: B sequences of S tokens, N blocks of G slots, H hidden size, m taps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import Qwen3Config

from pipeline.drafts.attention import AttentionPlan, attend, sdpa
from pipeline.drafts.base import Draft
from pipeline.drafts.families import qwen3


@dataclass
class ContextState:
    """Keys and values of the observed context, one growing buffer a layer ([2, capacity, kv, d])."""

    layers: list[Tensor] = field(default_factory=list)
    length: int = 0


class Backbone(Draft):
    """Context injection and draft layers; the embedding is the target's, frozen."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        self.fc = nn.Linear(len(config.target_layer_ids) * hidden, hidden, bias=False)
        self.hidden_norm = qwen3.RMSNorm(hidden, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(qwen3.DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = qwen3.RMSNorm(hidden, eps=config.rms_norm_eps)
        self.rotary = qwen3.Rotary(config)

    def decoder_layers(self) -> list[qwen3.DecoderLayer]:
        """The draft's layers, by their type."""
        return [layer for layer in self.layers if isinstance(layer, qwen3.DecoderLayer)]

    def inputs(self, anchors: Tensor) -> Tensor:
        """Embeddings [N, G, H] of blocks whose anchors are the tokens [N]: the anchor, then mask tokens."""
        ids = anchors.new_full((len(anchors), self.config.block_size), self.config.mask_token_id)
        ids[:, 0] = anchors
        return self.embed_tokens(ids)

    def context(self, hidden: Tensor) -> Tensor:
        """H_ctx = RMSNorm(fc [H^(l1); ...; H^(lm)]): [.., m*H] -> [.., H]."""
        return self.hidden_norm(self.fc(hidden.to(self.fc.weight.dtype)))

    def forward(
        self, hidden: Tensor, anchor_tokens: Tensor, rows: Tensor, anchors: Tensor, plan: AttentionPlan
    ) -> Tensor:
        """Final states [N, G, H] of the blocks.

        ``hidden`` [B, S, m*H]; ``anchor_tokens``, ``rows``, ``anchors`` int64 [N]: token, sequence and position.
        """
        context = self.context(hidden)
        x = self.inputs(anchor_tokens)
        slots = anchors[:, None] + torch.arange(x.shape[1], device=x.device)
        context_tables = self.rotary(context, torch.arange(context.shape[1], device=x.device))
        tables = self.rotary(x, slots)
        for layer in self.decoder_layers():
            k_ctx, v_ctx = layer.self_attn.keys_values(context, context_tables)
            x = layer(
                x,
                tables,
                lambda q, k, v, scale, k_ctx=k_ctx, v_ctx=v_ctx: attend(plan, q, k_ctx, v_ctx, k, v, scale),
            )
        return self.norm(x)

    def start(self) -> ContextState:
        """An empty context."""
        return ContextState()

    def observe(self, state: ContextState, tokens: Tensor, hidden: Tensor, last_hidden: Tensor) -> None:
        """Append n positions, taps ``hidden`` [n, m*H], to the context's keys and values."""
        context = self.context(hidden)
        positions = torch.arange(state.length, state.length + len(hidden), device=hidden.device)
        tables = self.rotary(context, positions)
        new = [torch.stack(layer.self_attn.keys_values(context, tables)) for layer in self.decoder_layers()]
        if not state.layers:
            state.layers = [torch.empty_like(x[:, :0]) for x in new]
        state.layers = [_append(old, x, state.length) for old, x in zip(state.layers, new, strict=True)]
        state.length += len(hidden)

    def draft(self, state: ContextState, anchor: Tensor) -> Tensor:
        """States [G, H] of the block after the observed context, whose anchor is the token ``anchor`` [1]."""
        x = self.inputs(anchor)
        tables = self.rotary(x, state.length + torch.arange(x.shape[1], device=x.device)[None])
        for layer, cached in zip(self.decoder_layers(), state.layers, strict=True):
            keys, values = cached[:, None, : state.length]  # [1, length, kv, d]

            def attend_cached(
                q: Tensor, k: Tensor, v: Tensor, scale: float, keys=keys, values=values
            ) -> Tensor:
                return sdpa(q, torch.cat([keys, k], 1), torch.cat([values, v], 1), None, scale)

            x = layer(x, tables, attend_cached)
        return self.norm(x)[0]


def _append(buffer: Tensor, new: Tensor, length: int) -> Tensor:
    """``buffer`` [2, capacity, ..] with ``new`` [2, n, ..] written behind ``length``; capacity doubles when full."""
    needed = length + new.shape[1]
    if needed > buffer.shape[1]:
        grown = buffer.new_empty(2, max(2 * buffer.shape[1], needed, 256), *buffer.shape[2:])
        grown[:, :length] = buffer[:, :length]
        buffer = grown
    buffer[:, length:needed] = new
    return buffer
