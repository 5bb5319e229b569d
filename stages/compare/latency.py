"""What share of a draft step goes from left to right, measured on this machine.

A block drafter makes the states and the parallel logits of all its drafts in one pass (``begin``). What then goes from
draft to draft (the sequential head, the confidence head, choosing the token) cannot be done side by side. The share is

    1 - time of the parallel pass / time of the whole proposal

as the median over pairs of calls made one right after the other, because a shared machine's speed drifts. A drafter
of one token after another has no parallel pass, and a share near 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from data_specs.results.comparison import StepShare
from pipeline.decoding.sampling import Sampler
from pipeline.drafts.model import Model

CONTEXT = 128  # observed positions
CALLS, WARM_UP = 30, 3


@torch.inference_mode()
def measure(draft: Model, calls: int = CALLS, seed: int = 0) -> StepShare:
    """Time ``calls`` pairs of parallel pass and whole proposal after ``CONTEXT`` random positions.

    ``draft`` is on the device and in the type that it would serve in.
    """
    state = _context(draft, seed)
    anchor = torch.tensor([1], device=draft.lm_head.weight.device)

    def parallel() -> None:
        draft.begin([state], anchor)

    def whole() -> None:
        draft.propose(state, 1, Sampler(temperature=0.0))

    for _ in range(WARM_UP):
        parallel()
        whole()
    pairs = [(_seconds(parallel, anchor), _seconds(whole, anchor)) for _ in range(calls)]
    return from_pairs(pairs)


def from_pairs(pairs: list[tuple[float, float]]) -> StepShare:
    """Medians of (parallel, whole) seconds."""
    share = median(1 - parallel / whole for parallel, whole in pairs)
    return StepShare(
        draft_ms=1000 * median(whole for _, whole in pairs),
        parallel_ms=1000 * median(parallel for parallel, _ in pairs),
        share=max(0.0, share),
    )


def _context(draft: Model, seed: int) -> Any:
    """A state with ``CONTEXT`` observed positions of random states: their values do not matter to the time."""
    weight, config = draft.lm_head.weight, draft.config
    generator = torch.Generator().manual_seed(seed)
    taps = len(config.target_layer_ids) * config.hidden_size
    hidden = torch.randn(CONTEXT, taps, generator=generator).to(weight)
    last = torch.randn(CONTEXT, config.hidden_size, generator=generator).to(weight)
    state = draft.start()
    draft.observe(state, torch.ones(CONTEXT, dtype=torch.int64, device=weight.device), hidden, last)
    return state


def _seconds(call: Callable[[], None], where: torch.Tensor) -> float:
    """Time of ``call`` with what it left running on a GPU."""
    began = time.perf_counter()
    call()
    if where.is_cuda:
        torch.cuda.synchronize(where.device)
    return time.perf_counter() - began
