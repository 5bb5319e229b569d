"""How many drafts of each request are worth verifying, given their confidences and the cost of a step.

R requests share one verification pass of B = R + sum of their lengths tokens. a[r, j] = prod_{i <= j} c[r, i] is the
probability that draft j of request r is accepted; SPS(B) the steps a second at B tokens. The throughput that lengths
promise is Theta = tau SPS(B), tau = R + sum of the admitted a (arXiv 2607.05147, Algorithm 1).

Whether a draft is verified may depend on what came before it only: never on its own token, nor on later ones (whose
confidences depend on it). Otherwise the output is not distributed as the target's (the paper's Appendix A). Admission
in descending order of a with an early stop keeps that: drafts of the same request before this one have larger a, those
after it smaller. All functions are pure; confidences are [R, G] in [0, 1], lengths int64 [R].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from data_specs.errors import UserError

Array = np.ndarray
BY_CONFIDENCE = ("threshold", "algorithm_1", "asynchronous")  # policies that look at confidences
FINE = 2**40  # parts of 1 in which two a are told apart
SAME = 1e-9  # relative difference of seconds that is none
# Confidences [R, G] of the current step -> lengths [R]. A confidence is 0 for what is no candidate (beyond the limit of
# its request) and for nothing else: how many candidates there are tells nothing of how likely they are.
Policy = Callable[[Array], Array]
LEAST = 1e-9  # of a candidate's confidence, as policies are given it


class ScheduleError(UserError):
    """Confidences or a cost table that nothing can be scheduled with; the message says what was expected."""


class Rate(Protocol):
    """SPS as the scheduler reads it: by one table, or by one for each number of requests."""

    def span(self, first: int, last: int) -> Array:
        """Steps a second of a step of ``first`` requests that verifies B = first .. last tokens."""


@dataclass(frozen=True)
class StepRate:
    """Steps a second by the tokens of a step: ``rates[i]`` holds for B = i+1. Raises ``ScheduleError`` if unusable."""

    rates: Array

    def __post_init__(self) -> None:
        rates = np.asarray(self.rates, dtype=np.float64)
        wrong = rates[~np.isfinite(rates) | (rates <= 0)]
        if rates.ndim != 1 or not len(rates) or wrong.size:
            raise ScheduleError(
                f"SPS table: expected positive finite steps a second for B = 1, 2, ..., got {wrong[:3].tolist()} in "
                f"the shape {rates.shape}"
            )
        object.__setattr__(self, "rates", rates)

    def span(self, first: int, last: int) -> Array:
        """Rates for B = first .. last; raises ``ScheduleError`` where the table does not reach."""
        if last > len(self.rates):
            raise ScheduleError(
                f"SPS table: measured up to B = {len(self.rates)}, a step may have {last} tokens"
            )
        return self.rates[first - 1 : last]


class Convex:
    """``rate`` with the largest convex curve below its seconds a step.

    tau is concave in the number of admissions (a descends), so over convex seconds Theta has one peak, and the first
    draft that does not improve it ends the search. Over a measured, jagged curve it would end at the first bump.
    """

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._known: dict[tuple[int, int], Array] = {}

    def span(self, first: int, last: int) -> Array:
        """See ``Rate``."""
        if (first, last) not in self._known:
            self._known[first, last] = 1 / convex(1 / self.rate.span(first, last))
        return self._known[first, last]


def convex(values: Array) -> Array:
    """The largest convex curve below ``values`` [n] of equally spaced places (lower hull, Andrew 1979)."""
    slopes = np.diff(values)
    bends = 1 + np.flatnonzero(np.diff(slopes) > SAME * values[1:-1])  # no other place can be a corner of it
    hull: list[int] = []
    for place in (0, *bends.tolist(), len(values) - 1):
        while len(hull) > 1 and _is_above(values, hull[-2], hull[-1], place):
            hull.pop()
        hull.append(place)
    covered: Array = np.interp(np.arange(len(values)), hull, values[hull])
    return covered


def _is_above(values: Array, left: int, middle: int, right: int) -> bool:
    """Whether the middle one lies on or above the line from left to right."""
    rise, whole = values[middle] - values[left], values[right] - values[left]
    return bool(rise * (right - left) >= whole * (middle - left))


def survival(confidences: Array) -> Array:
    """a [R, G], the cumulative product of confidences [R, G]. Raises ``ScheduleError`` for values outside [0, 1]."""
    confidences = np.asarray(confidences, dtype=np.float64)
    wrong = confidences[~((confidences >= 0) & (confidences <= 1))]  # NaN fails both
    if confidences.ndim != 2 or wrong.size:
        raise ScheduleError(
            f"confidences: expected numbers from 0 to 1 of shape [requests, drafts], got {wrong[:3].tolist()} in the "
            f"shape {confidences.shape}"
        )
    return np.cumprod(confidences, axis=1)


def algorithm_1(confidences: Array, rate: Rate, fit: Rate | None = None) -> Array:
    """Lengths by Algorithm 1: admit in descending a while Theta improves, stop at the first draft that does not.

    With a ``fit`` (``Convex``) a draft goes on that improves Theta by either curve: over the fit across the bumps of a
    measured curve, over the measured one through what such a bump has paid for. On a convex curve both are the same.
    """
    a = survival(confidences)
    order, promised = _promised(a, rate, *([] if fit is None else [fit]))
    worse = np.logical_and.reduce([theta[1:] <= theta[:-1] for theta in promised])
    admitted = int(np.argmax(worse)) if worse.any() else len(order)
    return _lengths(order[:admitted], a.shape)


def capacity(confidences: Array, rate: Rate) -> int:
    """K, the drafts a step that maximise Theta over all counts (no early stop; 0 with no request)."""
    _, (promised,) = _promised(survival(confidences), rate)
    return int(np.argmax(promised))


def by_rank(confidences: Array, count: int) -> Array:
    """Lengths that admit the ``count`` drafts with the largest a.

    Lossless for a count that does not depend on these confidences: the asynchronous form takes ``capacity`` of the
    step before the last, whose tokens are decided.
    """
    a = survival(confidences)
    return _lengths(_descending(a)[:count], a.shape)


def threshold(confidences: Array, least: float | Array) -> Array:
    """Lengths up to the first draft whose confidence is below ``least``: a number, or one for each position [>= G]."""
    drafts = survival(confidences).shape[1]
    lengths: Array = (np.asarray(confidences) >= np.atleast_1d(least)[:drafts]).cumprod(1).sum(1)
    return lengths


def fixed(confidences: Array, length: int) -> Array:
    """The same length for every request, at most G; 0 is plain decoding."""
    requests, drafts = np.shape(confidences)
    return np.full(requests, min(length, drafts), dtype=np.int64)


class Asynchronous:
    """The asynchronous form over a run: the schedule of a step is known before its confidences are.

    A capacity is a share of the candidates, which are fewer where requests near their limits. Until two steps have
    passed it is ``start`` drafts a request.
    """

    def __init__(self, rate: Rate, start: int = 1) -> None:
        self.rate, self.start = rate, start
        self.known: list[float] = []  # capacities of the last two steps, shares of their candidates

    def __call__(self, confidences: Array) -> Array:
        """Lengths of this step's requests."""
        candidates = int(np.count_nonzero(confidences))
        known = len(self.known) > 1
        count = round(self.known[-2] * candidates) if known else self.start * len(confidences)
        lengths = by_rank(confidences, count)
        self.known = [*self.known[-1:], capacity(confidences, self.rate) / max(1, candidates)]
        return lengths


def policy(
    name: str, rate: Rate | None = None, length: int = 0, least: float = 0.0, confident: bool = True
) -> Policy:
    """The policy ``none`` | ``fixed`` | ``threshold`` | ``algorithm_1`` | ``asynchronous``.

    ``confident``: the draft has a confidence head. Raises ``ScheduleError`` naming the policy where it is unknown, or
    needs such a head or an SPS table that is not there.
    """
    if name in BY_CONFIDENCE and not confident:
        raise ScheduleError(f"policy {name}: the draft has no confidence head (none and fixed need none)")
    if name in ("algorithm_1", "asynchronous") and rate is None:
        raise ScheduleError(f"policy {name}: needs an SPS table (stage=evaluate evaluate.profile=true)")
    if name == "none":
        return partial(fixed, length=0)
    if name == "fixed":
        return partial(fixed, length=length)
    if name == "threshold":
        return partial(threshold, least=least)
    if name == "algorithm_1" and rate is not None:
        return partial(algorithm_1, rate=rate, fit=Convex(rate))
    if name == "asynchronous" and rate is not None:
        return Asynchronous(rate)
    raise ScheduleError(f"policy: expected none, fixed, threshold, algorithm_1 or asynchronous, got {name}")


def candidates(confidences: Array, room: Array) -> Array:
    """What a policy is given: ``confidences`` [R, G] of the first ``room`` [R] drafts of each request, 0 beyond."""
    within = np.arange(np.shape(confidences)[1]) < room[:, None]
    return np.where(within, np.maximum(confidences, LEAST), 0.0)


def _descending(a: Array) -> Array:
    """Flat indices of a [R, G], largest first; of equal ones those at earlier positions, then of earlier requests.

    No two keys are equal, so the order of two drafts depends on these two alone: how a sort places equal keys may
    depend on all the others, later confidences among them.
    """
    requests, drafts = a.shape
    place = np.arange(drafts) * requests + np.arange(requests)[:, None]
    return np.argsort((((1 - a) * FINE).astype(np.int64) * a.size + place).ravel())


def _promised(a: Array, *rates: Rate) -> tuple[Array, list[Array]]:
    """The order of admission [R G], and by each rate Theta after 0, 1, ..., R G admissions [1 + R G]."""
    requests, order = len(a), _descending(a)
    if not requests:
        return order, [np.zeros(1) for _ in rates]
    tau = requests + np.concatenate([[0.0], np.cumsum(a.ravel()[order])])
    return order, [tau * rate.span(requests, requests + len(order)) for rate in rates]


def _lengths(admitted: Array, shape: tuple[int, ...]) -> Array:
    """Drafts a request [R] of the admitted flat indices."""
    return np.bincount(admitted // shape[1], minlength=shape[0])
