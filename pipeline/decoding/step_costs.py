"""SPS(B): the steps per second of the target at B tokens, measured on this machine.

A step verifies B tokens of several requests, each of which has one anchor, at most ``block`` drafts, and ``context``
earlier positions. Each repeat goes through all B, so that drift in machine speed affects all of them equally. The raw
medians are stored. ``table`` gives Algorithm 1 their monotone fit (isotonic regression of the seconds), because its
early stop needs a cost that never falls. The time of a draft pass by the number of requests is measured as well.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from data_specs.results.summary import CostCurve, DraftTime, Machine, Profile, VerifyTime
from pipeline.decoding.sampling import Sampler
from pipeline.decoding.scheduler import Array
from pipeline.drafts.base import Draft
from pipeline.target.model import Target
from pipeline.target.ragged import RaggedTarget

WARM_UP = 2
LEVEL = (2.5, 97.5)  # percentiles of the repeats


def token_counts(most: int) -> list[int]:
    """The B to measure: all up to 8, then four per doubling, and ``most``."""
    counts = list(range(1, min(8, most) + 1))
    while counts[-1] < most:
        quarter = 2 ** (counts[-1].bit_length() - 3)
        counts.append(min(most, counts[-1] + quarter))
    return counts


def split(tokens: int, block: int) -> list[int]:
    """``tokens`` of a step by request: 1 + ``block`` for each, and the rest for the last."""
    whole, rest = divmod(tokens, block + 1)
    return [block + 1] * whole + [rest] * (rest > 0)


def monotone(seconds: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to ``seconds`` in least squares (pool adjacent violators)."""
    pools: list[list[float]] = []  # mean and length of stretches
    for value in seconds:
        pools.append([value, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, n), (b, m) = pools[-2:]
            pools[-2:] = [[(a * n + b * m) / (n + m), n + m]]
    return [mean for mean, length in pools for _ in range(int(length))]


def measure(
    target: Target, draft: Draft, most: int, contexts: Sequence[int], repeats: int, advance: Callable[[], None]
) -> Profile:  # fmt: skip
    """The profile up to B = ``most``; ``contexts`` (ascending) are the positions before each request's tokens.

    ``advance`` is called ``rounds_of`` times.
    """
    counts, curves, block = token_counts(most), [], draft.max_drafts
    requests = token_counts(len(split(most, block)))
    for context in contexts:
        taken, drafting = _seconds(target, draft, counts, requests, context, repeats, advance)
        points = [VerifyTime(*one) for one in _points(counts, taken)]
        draft_times = [DraftTime(*one) for one in _points(requests, drafting)]
        curves.append(CostCurve(context, points, monotone(np.median(taken, 0).tolist()), draft_times))
    return Profile(machine(target), block, repeats, curves)


def rounds_of(contexts: Sequence[int], repeats: int) -> int:
    """How often ``measure`` calls ``advance``."""
    return len(contexts) * (repeats + WARM_UP)


def table(profile: Profile, name: str, model: str) -> dict[str, Any]:
    """The profile as a table of data_specs/sps.py for simulations: seconds without context, and those per position."""
    first, last = profile.contexts[0], profile.contexts[-1]
    counts = [point.tokens for point in first.points]
    requests = np.array([len(split(count, profile.block)) for count in counts])
    further = np.array(last.fit) - np.array(first.fit)
    between = max(1, last.context - first.context)
    position = max(0.0, float(np.median(further / (between * requests))))
    bare = monotone((np.array(first.fit) - position * first.context * requests).tolist())
    least = 0.1 * min(first.fit)  # noise in the slope must not make a step free
    rates = [{"tokens": n, "steps_per_second": 1 / max(s, least)} for n, s in zip(counts, bare, strict=True)]
    draft = [{"requests": time.requests, "seconds": time.seconds} for time in first.draft or []]
    return {
        "name": name, "machine": profile.machine.device, "model": model, "source": "measured",
        "note": f"stage=evaluate evaluate.profile=true: medians of {profile.repeats} repeats, monotone fit",
        "context": 0, "position_seconds": position, "points": rates, "draft": draft,
    }  # fmt: skip


def machine(target: Target) -> Machine:
    """The hardware of the profile, without the names of hosts or users."""
    cuda = target.device.type == "cuda"
    device = torch.cuda.get_device_name(target.device) if cuda else _processor()
    dtype = str(target.dtype).removeprefix("torch.")
    return Machine(device, os.cpu_count(), torch.get_num_threads(), str(torch.__version__), dtype)


def _processor() -> str:
    """The CPU's name if the system tells it, else its architecture."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


@torch.inference_mode()
def _seconds(
    target: Target, draft: Draft, counts: Sequence[int], requests: Sequence[int], context: int, repeats: int,
    advance: Callable[[], None],
) -> tuple[Array, Array]:  # fmt: skip
    """Seconds of verification passes fp64 [repeats, B] and of draft passes [repeats, R]."""
    block = draft.max_drafts
    ragged = RaggedTarget(target, max(requests), context + block + 1)
    states = [_observed(draft, target, context) for _ in range(max(requests))]
    verifying, drafting = [], []
    with ragged.attention():
        for _ in range(WARM_UP + repeats):
            verifying.append([_verify(ragged, split(count, block), context) for count in counts])
            drafting.append([_draft(draft, states[:count], target.device) for count in requests])
            advance()
    return np.array(verifying[WARM_UP:]), np.array(drafting[WARM_UP:])


class Reference:
    """A fixed verification pass of ``counts`` [R] tokens per request, which shows how fast the machine is now."""

    def __init__(self, target: Target, counts: list[int], context: int = 64) -> None:
        self.counts, self.context = counts, context
        self.ragged = RaggedTarget(target, len(counts), context + max(counts))

    @torch.inference_mode()
    def __call__(self) -> float:
        """The seconds of one pass."""
        with self.ragged.attention():
            return _verify(self.ragged, self.counts, self.context)


def _verify(ragged: RaggedTarget, counts: list[int], context: int) -> float:
    """Seconds of one verification pass of ``counts`` tokens per request, including the choice of tokens."""
    ids = torch.ones(sum(counts), dtype=torch.int64, device=ragged.target.device)
    ragged.lengths = [context] * len(ragged.lengths)  # of zeros: their values do not affect the time
    began = time.perf_counter()
    states = ragged.run(range(len(counts)), counts, ids)
    ragged.target.logits(states.last_hidden).argmax(-1).tolist()  # reading the choice waits for the device
    return time.perf_counter() - began


def _draft(draft: Draft, states: list[Any], device: torch.device) -> float:
    """Seconds of one draft pass for requests with ``states``."""
    anchors = torch.ones(len(states), dtype=torch.int64, device=device)
    began = time.perf_counter()
    draft.propose_all(states, anchors, Sampler()).tokens.tolist()
    return time.perf_counter() - began


def _observed(draft: Draft, target: Target, context: int) -> Any:
    """The draft's state for a request with ``context`` positions."""
    state = draft.start()
    ids = torch.ones(context, dtype=torch.int64, device=target.device)
    like = torch.zeros(context, target.hidden_size, dtype=target.dtype, device=target.device)
    draft.observe(state, ids, like.repeat(1, len(target.taps)), like)
    return state


def _points(counts: Sequence[int], taken: Array) -> list[tuple[int, float, tuple[float, float]]]:
    """For each count: (count, median seconds, interval of the repeats)."""
    medians = np.median(taken, axis=0)
    low, high = np.percentile(taken, LEVEL, axis=0)
    return [(count, float(medians[i]), (float(low[i]), float(high[i]))) for i, count in enumerate(counts)]
