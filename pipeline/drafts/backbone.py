"""The parallel backbone of block drafters (DFlash, DSpark): one pass gives the states of all slots of a block.

The ``block_size`` slots of a block lie at positions a, a+1, ...; their inputs are the anchor's token, then mask tokens.
Anchor-first (``sample_from_anchor: true``): slot k drafts the token at a+1+k. 1+N fill-in (``false``, z-lab's DFlash):
slot k drafts the token at its own position a+k. Slot 0 then drafts nothing, and a block has one draft fewer.

Shapes: B sequences of S tokens (R in decoding), N blocks of T slots, G drafts per block, H hidden size, m taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.drafts.base import Batch, Blocks
from pipeline.drafts.families.attention import Shape, attend, attend_each
from pipeline.drafts.model import Model, append, following


@dataclass
class ContextState:
    """Keys and values of the observed context: one growing buffer [2, capacity, kv, d] for each layer."""

    layers: list[Tensor] = field(default_factory=list)
    length: int = 0


class Backbone(Model):
    """Every draft layer reads the target's taps as additional keys and values (context injection)."""

    def __init__(self, config: Any, family: ModuleType) -> None:
        super().__init__(config, family)
        self.fc = nn.Linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = self.make_norm()

    @property
    def first(self) -> int:
        """The first slot that drafts."""
        return 0 if self.config.sample_from_anchor else 1

    @property
    def max_drafts(self) -> int:
        """See Draft.max_drafts."""
        return int(self.config.block_size) - self.first

    def inputs(self, anchors: Tensor) -> Tensor:
        """Embeddings [N, T, H] of blocks whose anchors are the tokens [N]: the anchor, then mask tokens."""
        ids = anchors.new_full((len(anchors), self.config.block_size), self.config.mask_token_id)
        ids[:, 0] = anchors
        return self.embed(ids)

    def context(self, hidden: Tensor) -> Tensor:
        """H_ctx = RMSNorm(fc [H^(l1); ...; H^(lm)]): [.., m*H] -> [.., H]."""
        context: Tensor = self.hidden_norm(self.fc(hidden.to(self.fc.weight.dtype)))
        return context

    def forward(self, hidden: Tensor, anchor_tokens: Tensor, rows: Tensor, anchors: Tensor) -> Tensor:
        """Final states [N, T, H] of the blocks.

        ``hidden`` [B, S, m*H]; ``anchor_tokens``, ``rows``, ``anchors`` int64 [N]: token, sequence and position.
        """
        context = self.context(hidden)
        x = self.inputs(anchor_tokens)
        plans = self.plans(rows, anchors, hidden.shape[1], x.shape[1], x.shape[1])
        slots = anchors[:, None] + torch.arange(x.shape[1], device=x.device)
        every = torch.arange(context.shape[1], device=x.device)
        for layer in self.decoder_layers:
            kind = layer.kind
            k_ctx, v_ctx = layer.self_attn.keys_values(context, self.rotary(context, every, kind))
            x = layer(x, self.rotary(x, slots, kind), partial(attend, plans[kind], k_ctx, v_ctx))
        states: Tensor = self.norm(x)
        return states

    def block_states(self, batch: Batch, blocks: Blocks, drafts: int | None = None) -> Tensor:
        """See Model.block_states. A block is always computed as a whole, whatever ``drafts`` is."""
        rows, columns = blocks.keep.nonzero(as_tuple=True)
        anchors = blocks.anchors[rows, columns]
        states: Tensor = self(batch.hidden, batch.input_ids[rows, anchors], rows, anchors)[:, self.first :]
        out = states.new_zeros(*blocks.keep.shape, *states.shape[1:])
        return out.index_put((rows, columns), states)

    def start(self) -> ContextState:
        """See Draft.start."""
        return ContextState()

    def observe_all(
        self, states: Sequence[ContextState], counts: Sequence[int], tokens: Tensor, hidden: Tensor,
        last_hidden: Tensor,
    ) -> None:  # fmt: skip
        """See Draft.observe_all: appends keys and values of the taps ``hidden`` [N, m*H] to each sequence's context."""
        context = self.context(hidden)
        positions = following([state.length for state in states], counts, hidden.device)
        for state in states:
            state.layers = state.layers or [None] * len(self.layers)  # type: ignore[list-item]
        for i, layer in enumerate(self.decoder_layers):
            new = layer.self_attn.keys_values(context, self.rotary(context, positions, layer.kind))
            for state, own in zip(states, torch.stack(new).split(list(counts), 1), strict=True):
                state.layers[i] = append(state.layers[i], own, state.length)
        for state, count in zip(states, counts, strict=True):
            state.length += count

    def draft(self, states: Sequence[ContextState], anchors: Tensor) -> Tensor:
        """States [R, G, H] of one block after each observed context; ``anchors`` [R] are the blocks' first tokens."""
        x = self.inputs(anchors)
        slots = following([state.length for state in states], [x.shape[1]] * len(states), x.device)
        slots = slots.view(len(states), -1)
        for i, layer in enumerate(self.decoder_layers):
            seen = [state.layers[i][:, None, : state.length] for state in states]  # [2, 1, length, kv, d]
            masks = [self._window_mask(layer.kind, state.length, x) for state in states]
            x = layer(x, self.rotary(x, slots, layer.kind), partial(attend_each, seen=seen, masks=masks))
        block: Tensor = self.norm(x)
        return block[:, self.first :]

    def _window_mask(self, kind: str, length: int, x: Tensor) -> Tensor | None:
        """bool [T, length + T]: what the slots of the next block see, or None if they see everything."""
        window, slots = self.window(kind), x.shape[1]
        if window is None or length + slots <= window:
            return None
        seen = Shape(slots, slots, window=window).seen(torch.tensor(length, device=x.device), length)
        return torch.cat([seen, seen.new_ones(slots, slots)], 1)
