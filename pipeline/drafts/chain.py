"""Drafters that draft one token after another: Eagle3 and MTP.

At pair position p the draft reads the target's state at p and the token at p+1, and predicts the token at p+2. So the
first draft after an anchor a comes from the pair a-1; every further one reads the draft's own state instead of the
target's, and the token before it. Keys and values of the pairs before are the context; those of a block's own steps
are seen by its later steps only (Eagle3's training-time test: every step is trained on the draft's own states).

Shapes: B sequences of S tokens, N blocks of G drafts, H hidden size, W width of what the layer's projections read.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.drafts.base import Batch, Blocks
from pipeline.drafts.families.attention import attend, attend_each
from pipeline.drafts.families.layers import DecoderLayer
from pipeline.drafts.model import Model, Step, append, following


@dataclass
class PairState:
    """Keys and values [2, capacity, kv, d] of the pairs so far, and the target's state [1, H] of the next one."""

    buffer: Tensor | None = None
    length: int = 0
    pending: Tensor | None = None


class Chain(Model):
    """One decoder layer over pairs of a token and a state."""

    @abstractmethod
    def source(self, hidden: Tensor, last_hidden: Tensor) -> Tensor:
        """The target's state that a pair reads, [.., H], from taps [.., m*H] and final states [.., H]."""

    @abstractmethod
    def enter(self, embedded: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Residual [.., H] and projections' input [.., W] of pairs of embedded tokens and states, [.., H] each."""

    def follow(self, out: Tensor) -> Tensor:
        """The state that the next pair reads, from the layer's output [.., H]."""
        return out

    @property
    def layer(self) -> DecoderLayer:
        """The one layer."""
        return self.decoder_layers[0]

    def block_states(self, batch: Batch, blocks: Blocks, drafts: int | None = None) -> Tensor:
        """See Model.block_states; ``drafts`` steps are made, later ones are zero."""
        rows, columns = blocks.keep.nonzero(as_tuple=True)
        anchors = blocks.anchors[rows, columns]
        states = torch.stack(self.steps(batch, rows, anchors, drafts or self.max_drafts), 1)  # [N, drafts, H]
        out = states.new_zeros(*blocks.keep.shape, self.max_drafts, states.shape[-1])
        at = (rows[:, None], columns[:, None], torch.arange(states.shape[1], device=rows.device)[None])
        return out.index_put(at, states)

    def steps(self, batch: Batch, rows: Tensor, anchors: Tensor, drafts: int) -> list[Tensor]:
        """Final states [N, H] of ``drafts`` steps for blocks at ``anchors`` int64 [N] of the sequences ``rows``.

        An anchor at 0 has no state before it (a filler's; it weighs nothing): it reads its own.
        """
        layer, kind, length = self.layer, self.layer.kind, batch.input_ids.shape[1]
        pairs = (anchors - 1).clamp(min=0)
        sources = self.source(batch.hidden, batch.last_hidden)
        _, every = self.enter(self.embed(batch.input_ids.roll(-1, 1)), sources)  # the last pair is never seen
        k_ctx, v_ctx = layer.self_attn.keys_values(
            every, self.rotary(every, torch.arange(length, device=rows.device), kind)
        )
        state, keys, values, found = sources[rows, pairs], [], [], []
        for k in range(drafts):
            tokens = batch.input_ids[rows, (anchors + k).clamp(max=length - 1)]
            x, entered = self.enter(self.embed(tokens)[:, None], state[:, None])  # [N, 1, ..]
            plan = self.plans(rows, pairs, length, 1, k + 1, first=k)[kind]

            def attend_chain(q: Tensor, key: Tensor, value: Tensor, scale: float, plan=plan) -> Tensor:
                keys.append(key)
                values.append(value)
                return attend(plan, q, k_ctx, v_ctx, torch.cat(keys, 1), torch.cat(values, 1), scale)

            out = layer(x, self.rotary(x, pairs[:, None] + k, kind), attend_chain, entered)[:, 0]
            found.append(self.norm(out))
            state = self.follow(out)
        return found

    def start(self) -> PairState:
        """Nothing observed yet."""
        return PairState()

    def observe_all(
        self,
        states: Sequence[PairState],
        counts: Sequence[int],
        tokens: Tensor,
        hidden: Tensor,
        last_hidden: Tensor,
    ) -> None:
        """Append the pairs that the positions complete; each sequence's last one waits for the token after it."""
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
        """See Model.begin: a pass of the layer a token."""
        assert all(state.pending is not None for state in states), (
            "a prompt is observed before anything is drafted"
        )
        layer, kind = self.layer, self.layer.kind
        memory = torch.cat([state.pending for state in states if state.pending is not None])  # [R, H]
        places = torch.tensor([[state.length] for state in states], device=anchors.device)
        seen = [None if state.buffer is None else state.buffer[:, None, : state.length] for state in states]
        own: list[Tensor] = []  # keys and values [2, R, 1, kv, d] of the steps so far

        def attend_all(q: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
            own.append(torch.stack([key, value]))
            k, v = torch.cat(own, 2)
            contexts = [
                k.new_empty(2, 1, 0, *k.shape[2:]) if context is None else context for context in seen
            ]
            masks = [self._window_mask(kind, context.shape[2] + k.shape[1], q) for context in contexts]
            return attend_each(q, k, v, contexts, masks, scale)

        def step(previous: Tensor) -> tuple[Tensor, Tensor | None]:
            nonlocal memory, places
            x, entered = self.enter(self.embed(previous)[:, None], memory[:, None])
            out = layer(x, self.rotary(x, places, kind), attend_all, entered)[:, 0]
            memory, places = self.follow(out), places + 1
            return self.logits(self.norm(out)), None

        return step

    def _window_mask(self, kind: str, length: int, q: Tensor) -> Tensor | None:
        """bool [1, length]: the last keys that a query sees; None where that is all of them."""
        window = self.window(kind)
        if window is None or length <= window:
            return None
        return (torch.arange(length, device=q.device) >= length - window)[None]
