"""The target over many sequences in one pass: their tokens form one row, without padding to the longest.

Projections, MLP and head treat each token by itself, whatever its sequence, so the cost of a pass follows the number of
tokens. Attention does not: each sequence has a slot of a preallocated KV cache and sees only that. It is an attention
function for transformers' own interface, so every model that uses this interface runs unchanged.

Shapes: R sequences, T tokens of a pass, L positions of a slot, kv key-value heads, g queries per key-value head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from pipeline.config import ConfigError
from pipeline.target.model import States, Target

NAME = "draftline_ragged"
MOST_EVEN = 32  # longest parts, in tokens, that attend together; a longer one keeps the machine busy alone


@dataclass(frozen=True)
class Part:
    """Tokens ``first`` .. ``last`` - 1 of a pass: positions ``start`` ... of the sequence in ``slot``."""

    slot: int
    first: int
    last: int
    start: int

    def span(self, window: int | None) -> tuple[int, int]:
        """The range of positions of the slot that any query of the part sees: first, and after the last."""
        low = 0 if window is None else max(0, self.start - window + 1)
        return low, self.start + self.last - self.first

    def mask(self, window: int | None, groups: int, like: Tensor) -> Tensor | None:
        """The summand (0 or -inf) of scores [g*n, L] over ``span``; None if a single query sees all of it."""
        low, stop = self.span(window)
        if self.last - self.first == 1:
            return None
        keys = torch.arange(low, stop, device=like.device)
        queries = torch.arange(self.start, stop, device=like.device)[:, None]
        seen = keys <= queries
        if window is not None:
            seen &= keys > queries - window
        # It has the type of the scores, so that the layers need not convert it.
        return like.new_zeros(seen.shape).masked_fill(~seen, -torch.inf).repeat(groups, 1)


class EvenParts:
    """R parts of ``count`` tokens each in the slots 0 .. R-1: each layer computes their attention in one call.

    These slots are one slice of the cache, which needs no copy.
    """

    def __init__(self, parts: list[Part], device: torch.device) -> None:
        self.size, self.count = len(parts), parts[0].last - parts[0].first
        starts = torch.tensor([part.start for part in parts])
        self.rows = torch.arange(self.size, device=device)[:, None]
        self.places = (starts[:, None] + torch.arange(self.count)).to(device)  # positions [R, n]
        self.longest = int(starts.max()) + self.count  # L
        self._masks: dict[tuple[int | None, int], Tensor] = {}

    @staticmethod
    def fits(parts: list[Part]) -> bool:
        """Whether the parts have equal lengths up to ``MOST_EVEN`` and are in order from slot 0."""
        counts = {part.last - part.first for part in parts}
        in_order = all(part.slot == place for place, part in enumerate(parts))
        return len(parts) > 1 and len(counts) == 1 and max(counts) <= MOST_EVEN and in_order

    def write(self, held: Tensor, new: Tensor) -> None:
        """Put ``new`` [kv, R*n, d] into the layer's ``held`` [slots, kv, capacity, d]."""
        held[self.rows, :, self.places] = new.unflatten(1, (self.size, -1)).permute(1, 2, 0, 3)

    def mask(self, window: int | None, groups: int, like: Tensor) -> Tensor:
        """The summand (0 or -inf) of scores [R, 1, g*n, L]."""
        if (window, groups) not in self._masks:
            keys, last = torch.arange(self.longest, device=like.device), self.places[..., None]
            seen = keys <= last  # [R, n, L]
            if window is not None:
                seen &= keys > last - window
            hidden = like.new_zeros(seen.shape).masked_fill(~seen, -torch.inf)
            self._masks[window, groups] = hidden.repeat(1, groups, 1)[:, None]
        return self._masks[window, groups]

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, window: int | None, scale: float, sinks: Tensor | None
    ) -> Tensor:  # fmt: skip
        """[T, g*kv, d] for ``query`` [g*kv, T, d] over the layer's ``keys`` and ``values`` [slots, kv, capacity, d]."""
        k, v = (held[: self.size, :, : self.longest] for held in (keys, values))
        groups = len(query) // keys.shape[1]
        q = query.unflatten(0, (-1, groups)).unflatten(2, (self.size, -1)).permute(2, 0, 1, 3, 4)
        made = _attend(q.flatten(2, 3), k, v, self.mask(window, groups, query), scale, sinks)
        apart: Tensor = made.unflatten(2, (groups, -1))  # [R, kv, g, n, d]
        return apart.permute(0, 3, 1, 2, 4).flatten(0, 1).flatten(1, 2)


@dataclass
class Pass:
    """One run of the target: its parts, the cache they use, and their masks, which all layers share."""

    cache: SlotCache
    parts: list[Part]
    even: EvenParts | None = None  # if ``EvenParts.fits``
    masks: dict[tuple[int | None, int], list[Tensor | None]] = field(default_factory=dict)

    def masks_of(self, window: int | None, groups: int, like: Tensor) -> list[Tensor | None]:
        """The mask of each part, with the type and device of ``like``."""
        if (window, groups) not in self.masks:
            self.masks[window, groups] = [part.mask(window, groups, like) for part in self.parts]
        return self.masks[window, groups]


def supports(target: Target) -> bool:
    """Whether several sequences can run at once.

    They cannot if the model keeps more than keys and values, caps scores, attends in chunks, or computes attention by
    itself instead of by the function that transformers' interface names.
    """
    own = getattr(target.config, "attn_logit_softcapping", None) or "chunked_attention" in (
        getattr(target.config, "layer_types", None) or ()
    )
    return target.has_plain_cache and target.model._supports_attention_backend and not own


class SlotCache:
    """Keys and values [slots, kv, capacity, d] of every layer, allocated when the layer first writes."""

    def __init__(self, slots: int, capacity: int) -> None:
        self.slots, self.capacity = slots, capacity
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def write(self, layer: int, key: Tensor, value: Tensor, run: Pass) -> tuple[Tensor, Tensor]:
        """Put the keys and values [kv, T, d] of a pass into their slots; returns the layer's."""
        if layer not in self.layers:
            self.layers[layer] = self._empty(key), self._empty(value)
        keys, values = self.layers[layer]
        if run.even is not None:
            run.even.write(keys, key)
            run.even.write(values, value)
            return keys, values
        for part in run.parts:
            low, stop = part.start, part.start + part.last - part.first
            keys[part.slot, :, low:stop] = key[:, part.first : part.last]
            values[part.slot, :, low:stop] = value[:, part.first : part.last]
        return keys, values

    def _empty(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.slots, like.shape[0], self.capacity, like.shape[-1])


class RaggedTarget:
    """A target whose sequences are in slots. ``lengths`` [R] counts the positions that each slot holds."""

    def __init__(self, target: Target, slots: int, capacity: int) -> None:
        """Raises ``ConfigError`` if the target ``supports`` no ragged passes."""
        if not supports(target):
            raise ConfigError(
                f"{type(target.model).__name__} cannot run several prompts at once: expected "
                "evaluate.batch=1, evaluate.profile=false and another stage than study"
            )
        self.target, self.capacity = target, capacity
        self.cache = SlotCache(slots, capacity)
        self.lengths = [0] * slots

    @contextmanager
    def attention(self) -> Iterator[None]:
        """Inside the block, the target uses the attention of this module."""
        model = self.target.model
        before = model.config._attn_implementation
        AttentionInterface.register(NAME, attend)
        model.set_attn_implementation(NAME)
        try:
            yield
        finally:
            model.set_attn_implementation(before)

    def run(self, slots: Sequence[int], counts: Sequence[int], ids: Tensor) -> States:
        """States [T, m*H], [T, H] of ``ids`` int64 [T]: ``counts`` tokens of each of ``slots``, in this order.

        They continue the contents of the slots and are added to them. Call this only inside ``attention()``.
        """
        parts, first = [], 0
        for slot, count in zip(slots, counts, strict=True):
            parts.append(Part(slot, first, first + count, self.lengths[slot]))
            first += count
        for part in parts:
            self.lengths[part.slot] += part.last - part.first
            assert self.lengths[part.slot] <= self.capacity, "the engine admits no request that is too long"
        positions = torch.cat([torch.arange(p.start, p.start + p.last - p.first) for p in parts])
        even = EvenParts(parts, ids.device) if EvenParts.fits(parts) else None
        states = self.target.run(
            ids[None], position_ids=positions[None].to(ids.device), ragged=Pass(self.cache, parts, even)
        )
        return States(states.hidden[0], states.last_hidden[0])

    def move(self, slot: int, free: int) -> None:
        """Move the contents of ``slot`` to the slot ``free``."""
        length = self.lengths[slot]
        for held in (tensor for pair in self.cache.layers.values() for tensor in pair):
            held[free, :, :length] = held[slot, :, :length]
        self.lengths[free], self.lengths[slot] = length, 0

    def keep(self, slot: int, length: int) -> None:
        """Keep only the first ``length`` positions of ``slot``; 0 frees it."""
        assert length <= self.lengths[slot]
        self.lengths[slot] = length


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: float,
    sliding_window: int | None = None, s_aux: Tensor | None = None, *, ragged: Pass, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """transformers' attention function: query [1, g*kv, T, d], key and value [1, kv, T, d] -> [1, T, g*kv, d].

    ``s_aux`` [g*kv] are the logits of gpt-oss' sinks, which take a share of the attention for nothing.
    """
    layer: int = module.layer_idx  # type: ignore[assignment]
    keys, values = ragged.cache.write(layer, key[0], value[0], ragged)
    if ragged.even is not None:
        return ragged.even.attend(query[0], keys, values, sliding_window, scaling, s_aux)[None], None
    groups = query.shape[1] // key.shape[1]
    masks = ragged.masks_of(sliding_window, groups, query)
    folded = query[0].unflatten(0, (-1, groups))  # [kv, g, T, d]
    out = query.new_empty(query.shape[2], query.shape[1], value.shape[-1])
    for part, mask in zip(ragged.parts, masks, strict=True):
        low, stop = part.span(sliding_window)
        own = folded[:, :, part.first : part.last].flatten(
            1, 2
        )  # [kv, g*n, d], so keys are not copied for each query head
        k, v = keys[part.slot, :, low:stop], values[part.slot, :, low:stop]
        made = _attend(own[None], k[None], v[None], mask, scaling, s_aux)[0]
        out[part.first : part.last] = made.unflatten(1, (groups, -1)).flatten(0, 1).transpose(0, 1)
    return out[None], None


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, sinks: Tensor | None
) -> Tensor:
    """[S, kv, g*n, d] for q [S, kv, g*n, d], k and v [S, kv, L, d], mask broadcast to [S, kv, g*n, L] (0 or -inf)."""
    if sinks is None:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    scores = q @ k.transpose(-1, -2) * scale
    if mask is not None:
        scores = scores + mask
    heads = q.shape[1]
    own = sinks.view(heads, -1).repeat_interleave(q.shape[2] * heads // len(sinks), 1)  # [kv, g*n]
    both = torch.cat([scores, own[..., None].to(scores.dtype).expand(*scores.shape[:-1], 1)], -1)
    return both.softmax(-1)[..., :-1].to(v.dtype) @ v
