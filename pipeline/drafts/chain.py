"""Drafters that draft one token after another: Eagle3 and MTP.

Pair p is the target's state at p and the token at p+1; from it the draft predicts the token at p+2. The first draft
after an anchor a comes from pair a-1. Every later draft reads the token before it, and the draft's own state instead of
the target's. The keys and values of earlier pairs are the context. Those of a block's own steps are seen only by the
later steps of the block (Eagle3's training-time test: every step is trained on the draft's own states).

Shapes: B sequences of S tokens, N blocks of G drafts, H hidden size, W input width of the layer's projections.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pipeline.drafts.base import Batch, Blocks
from pipeline.drafts.families.attention import AttentionPlan, attend, attend_each
from pipeline.drafts.families.layers import DecoderLayer
from pipeline.drafts.model import Model, Step, append, following


@dataclass
class PairState:
    """Keys and values [2, capacity, kv, d] of the pairs so far, and the target's state [1, H] of the next pair."""

    buffer: Tensor | None = None
    length: int = 0
    pending: Tensor | None = None


class Chain(Model):
    """One decoder layer over pairs of a token and a state."""

    @abstractmethod
    def source(self, hidden: Tensor, last_hidden: Tensor) -> Tensor:
        """The target's state [.., H] that a pair reads, made from taps [.., m*H] and final states [.., H]."""

    @abstractmethod
    def enter(self, embedded: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The residual [.., H] and the projections' input [.., W] of pairs of token and state, each [.., H]."""

    def follow(self, out: Tensor) -> Tensor:
        """The state [.., H] that the next pair reads, made from the layer's output [.., H]."""
        return out

    @property
    def layer(self) -> DecoderLayer:
        """The only layer."""
        return self.decoder_layers[0]

    def block_states(self, batch: Batch, blocks: Blocks, drafts: int | None = None) -> Tensor:
        """See Model.block_states. Only ``drafts`` steps are computed; the states of later steps are zero."""
        rows, columns = blocks.keep.nonzero(as_tuple=True)
        anchors = blocks.anchors[rows, columns]
        states = torch.stack(self.steps(batch, rows, anchors, drafts or self.max_drafts), 1)  # [N, drafts, H]
        out = states.new_zeros(*blocks.keep.shape, self.max_drafts, states.shape[-1])
        at = (rows[:, None], columns[:, None], torch.arange(states.shape[1], device=rows.device)[None])
        return out.index_put(at, states)

    def steps(self, batch: Batch, rows: Tensor, anchors: Tensor, drafts: int) -> list[Tensor]:
        """Final states [N, H] of each of ``drafts`` steps for blocks at ``anchors`` int64 [N] of sequences ``rows``.

        An anchor at 0 has no state before it and reads its own. Only padding has such anchors, with weight 0.
        """
        layer, kind, length = self.layer, self.layer.kind, batch.input_ids.shape[1]
        pairs = (anchors - 1).clamp(min=0)
        sources = self.source(batch.hidden, batch.last_hidden)
        # roll gives the last pair a wrong token, but no query sees that pair.
        _, every = self.enter(self.embed(batch.input_ids.roll(-1, 1)), sources)
        tables = self.rotary(every, torch.arange(length, device=rows.device), kind)
        k_ctx, v_ctx = layer.self_attn.keys_values(every, tables)
        state, keys, values, found = sources[rows, pairs], [], [], []

        def attend_chain(plan: AttentionPlan, q: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
            keys.append(key)
            values.append(value)
            return attend(plan, k_ctx, v_ctx, q, torch.cat(keys, 1), torch.cat(values, 1), scale)

        for k in range(drafts):
            tokens = batch.input_ids[rows, (anchors + k).clamp(max=length - 1)]
            x, entered = self.enter(self.embed(tokens)[:, None], state[:, None])  # [N, 1, ..]
            attend_k = partial(attend_chain, self.plans(rows, pairs, length, 1, k + 1, first=k)[kind])
            out = layer(x, self.rotary(x, pairs[:, None] + k, kind), attend_k, entered)[:, 0]
            found.append(self.norm(out))
            state = self.follow(out)
        return found

    def start(self) -> PairState:
        """See Draft.start."""
        return PairState()

    def observe_all(
        self, states: Sequence[PairState], counts: Sequence[int], tokens: Tensor, hidden: Tensor, last_hidden: Tensor
    ) -> None:  # fmt: skip
        """See Draft.observe_all: appends the complete pairs. The last position waits for its next token."""
        sources = self.source(hidden, last_hidden).split(list(counts))
        ids, before, found = [], [], []
        for state, own, new in zip(states, tokens.split(list(counts)), sources, strict=True):
            pairs = new[:-1] if state.pending is None else torch.cat([state.pending, new[:-1]])
            before.append(pairs)
            ids.append(own[len(own) - len(pairs) :])
            found.append(len(pairs))
            state.pending = new[-1:]
        if not sum(found):
            return
        _, entered = self.enter(self.embed(torch.cat(ids)), torch.cat(before))
        positions = following([state.length for state in states], found, tokens.device)
        made = self.layer.self_attn.keys_values(entered, self.rotary(entered, positions, self.layer.kind))
        for state, count, own in zip(states, found, torch.stack(made).split(found, 1), strict=True):
            state.buffer = append(state.buffer, own, state.length)
            state.length += count

    def begin(self, states: Sequence[PairState], anchors: Tensor) -> Step:
        """See Model.begin: each token takes one pass of the layer."""
        assert all(state.pending is not None for state in states), "observe the prompt before drafting"
        layer, kind = self.layer, self.layer.kind
        memory = torch.cat([state.pending for state in states if state.pending is not None])  # [R, H]
        places = torch.tensor([[state.length] for state in states], device=anchors.device)
        seen = [None if state.buffer is None else state.buffer[:, None, : state.length] for state in states]
        own: list[Tensor] = []  # keys and values [2, R, 1, kv, d] of the steps so far

        def attend_all(q: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
            own.append(torch.stack([key, value]))
            k, v = torch.cat(own, 2)
            contexts = [k.new_empty(2, 1, 0, *k.shape[2:]) if each is None else each for each in seen]
            masks = [self._window_mask(kind, context.shape[2] + k.shape[1], q) for context in contexts]
            return attend_each(q, k, v, scale, contexts, masks)

        def step(previous: Tensor) -> tuple[Tensor, Tensor | None]:
            nonlocal memory, places
            x, entered = self.enter(self.embed(previous)[:, None], memory[:, None])
            out = layer(x, self.rotary(x, places, kind), attend_all, entered)[:, 0]
            memory, places = self.follow(out), places + 1
            return self.logits(self.norm(out)), None

        return step

    def _window_mask(self, kind: str, length: int, q: Tensor) -> Tensor | None:
        """bool [1, length]: which keys a query sees, or None if it sees all."""
        window = self.window(kind)
        if window is None or length <= window:
            return None
        return (torch.arange(length, device=q.device) >= length - window)[None]
