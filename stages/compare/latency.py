"""Measures the sequential share of a draft step on this machine.

A block drafter computes the states and parallel logits of all its drafts in one pass (``begin``). The rest (sequential
head, confidence head, choosing tokens) must go from draft to draft. Its share is

    1 - time of the parallel pass / time of the whole proposal

and the result is the median over pairs of consecutive calls, because the speed of a shared machine drifts. An
autoregressive drafter has no parallel pass, so its share is near 1.
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

    ``draft`` must already be on the device and in the dtype in which it would serve.
    """
    state = _context(draft, seed)
    anchor = torch.tensor([1], device=draft.lm_head.weight.device)

    def seconds(call: Callable[[], object]) -> float:
        began = time.perf_counter()
        call()
        if anchor.is_cuda:
            torch.cuda.synchronize(anchor.device)
        return time.perf_counter() - began

    def pair() -> tuple[float, float]:
        return seconds(lambda: draft.begin([state], anchor)), seconds(
            lambda: draft.propose(state, 1, Sampler())
        )

    return from_pairs([pair() for _ in range(WARM_UP + calls)][WARM_UP:])


def from_pairs(pairs: list[tuple[float, float]]) -> StepShare:
    """The medians over pairs of (parallel, whole) seconds."""
    share = median(1 - parallel / whole for parallel, whole in pairs)
    return StepShare(
        draft_ms=1000 * median(whole for _, whole in pairs),
        parallel_ms=1000 * median(parallel for parallel, _ in pairs),
        share=max(0.0, share),
    )


def _context(draft: Model, seed: int) -> Any:
    """A state with ``CONTEXT`` observed positions; their hidden states are random, which does not affect the time."""
    weight, config = draft.lm_head.weight, draft.config
    generator = torch.Generator().manual_seed(seed)
    taps = len(config.target_layer_ids) * config.hidden_size
    hidden = torch.randn(CONTEXT, taps, generator=generator).to(weight)
    last = torch.randn(CONTEXT, config.hidden_size, generator=generator).to(weight)
    state = draft.start()
    draft.observe(state, torch.ones(CONTEXT, dtype=torch.int64, device=weight.device), hidden, last)
    return state
