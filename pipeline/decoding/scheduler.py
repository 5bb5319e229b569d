"""How many drafts of each request are worth verifying, given their confidences and the cost of a step.

R requests share one verification pass of B = R + (sum of their lengths) tokens. a[r, j] = prod_{i <= j} c[r, i] is the
probability that draft j of request r is accepted, and SPS(B) is the steps per second at B tokens. The expected
throughput is Theta = tau SPS(B), where tau = R + (sum of the admitted a) (arXiv 2607.05147, Algorithm 1).

Whether a draft is verified may depend only on what came before it, not on its own token or on later tokens, whose
confidences depend on it. Otherwise the output is not distributed as the target's (Appendix A of the paper). Admission
in descending order of a with an early stop satisfies this, because a falls along each request. Confidences are [R, G]
in [0, 1], lengths int64 [R].
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
FINE = 2**40  # resolution at which two a are compared
SAME = 1e-9  # relative differences of seconds below this count as equal
# Confidences [R, G] of the current step -> lengths [R]. Confidence 0 marks drafts that may not be scheduled (beyond the
# limit of their request). Candidates are always above 0, so their number reveals nothing about their confidence.
Policy = Callable[[Array], Array]
LEAST = 1e-9  # smallest confidence of a candidate


class ScheduleError(UserError):
    """Confidences or a cost table are unusable; the message says what was expected."""


class Rate(Protocol):
    """SPS as the scheduler uses it: one table, or one for each number of requests."""

    def span(self, first: int, last: int) -> Array:
        """Steps per second of a step of ``first`` requests for B = first .. last."""


@dataclass(frozen=True)
class StepRate:
    """Steps per second by the tokens of a step: ``rates[i]`` is for B = i+1. Raises ``ScheduleError`` if unusable."""

    rates: Array

    def __post_init__(self) -> None:
        rates = np.asarray(self.rates, dtype=np.float64)
        wrong = rates[~np.isfinite(rates) | (rates <= 0)]
        if rates.ndim != 1 or not len(rates) or wrong.size:
            raise ScheduleError(
                f"SPS table: expected positive finite steps per second for B = 1, 2, ..., got {wrong[:3].tolist()} in "
                f"the shape {rates.shape}"
            )
        object.__setattr__(self, "rates", rates)

    def span(self, first: int, last: int) -> Array:
        """Rates for B = first .. last. Raises ``ScheduleError`` if the table ends before."""
        if last > len(self.rates):
            raise ScheduleError(
                f"SPS table: ends at B = {len(self.rates)}, but a step may have {last} tokens"
            )
        return self.rates[first - 1 : last]


class Convex:
    """``rate``, with the seconds per step replaced by the largest convex curve below them.

    tau is concave in the number of admissions, because a descends. So Theta has one peak over convex seconds, and the
    search may stop at the first draft that does not improve it. On a measured, jagged curve it would stop at a bump.
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
    """The largest convex curve below ``values`` [n] at equally spaced places (lower hull, Andrew 1979)."""
    slopes = np.diff(values)
    bends = 1 + np.flatnonzero(np.diff(slopes) > SAME * values[1:-1])  # only these places can be corners
    hull: list[int] = []
    for place in (0, *bends.tolist(), len(values) - 1):
        while len(hull) > 1 and _is_above(values, hull[-2], hull[-1], place):
            hull.pop()
        hull.append(place)
    covered: Array = np.interp(np.arange(len(values)), hull, values[hull])
    return covered


def _is_above(values: Array, left: int, middle: int, right: int) -> bool:
    """Whether the value at ``middle`` is on or above the line from ``left`` to ``right``."""
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
    """Lengths by Algorithm 1: admit drafts in descending a, and stop at the first that does not improve Theta.

    With a ``fit`` (``Convex``), drafts are admitted while Theta improves under either curve: the fit carries the search
    across local bumps of the measured curve.
    """
    a = survival(confidences)
    order, promised = _promised(a, rate, *([] if fit is None else [fit]))
    worse = np.logical_and.reduce([theta[1:] <= theta[:-1] for theta in promised])
    admitted = int(np.argmax(worse)) if worse.any() else len(order)
    return _lengths(order[:admitted], a.shape)


def capacity(confidences: Array, rate: Rate) -> int:
    """K, the number of drafts that maximises Theta over all counts, without early stop; 0 without requests."""
    _, (promised,) = _promised(survival(confidences), rate)
    return int(np.argmax(promised))


def by_rank(confidences: Array, count: int) -> Array:
    """Lengths that admit the ``count`` drafts with the largest a.

    This is lossless if ``count`` does not depend on these confidences. The asynchronous form uses the ``capacity`` of
    the step before the last, whose tokens are decided.
    """
    a = survival(confidences)
    return _lengths(_descending(a)[:count], a.shape)


def threshold(confidences: Array, least: float | Array) -> Array:
    """Lengths up to the first draft whose confidence is below ``least``, one number or one per position [>= G]."""
    drafts = survival(confidences).shape[1]
    lengths: Array = (np.asarray(confidences) >= np.atleast_1d(least)[:drafts]).cumprod(1).sum(1)
    return lengths


def fixed(confidences: Array, length: int) -> Array:
    """The same ``length`` for every request, at most G; 0 is plain decoding."""
    requests, drafts = np.shape(confidences)
    return np.full(requests, min(length, drafts), dtype=np.int64)


class Asynchronous:
    """The asynchronous form: the number of drafts in a step is known before the confidences of that step.

    It is stored as a share of the candidates, because there are fewer when requests approach their limits. In the first
    two steps it is ``start`` drafts per request.
    """

    def __init__(self, rate: Rate, start: int = 1) -> None:
        self.rate, self.start = rate, start
        self.known: list[float] = []  # capacities of the last two steps, as shares

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

    ``confident`` says whether the draft has a confidence head. Raises ``ScheduleError`` naming a policy that is
    unknown, or that lacks the head or SPS table that it needs.
    """
    if name in BY_CONFIDENCE and not confident:
        raise ScheduleError(f"policy {name}: the draft has no confidence head (none and fixed need none)")
    if name in ("none", "fixed"):
        return partial(fixed, length=length if name == "fixed" else 0)
    if name == "threshold":
        return partial(threshold, least=least)
    if name in ("algorithm_1", "asynchronous"):
        if rate is None:
            raise ScheduleError(f"policy {name}: needs an SPS table (stage=evaluate evaluate.profile=true)")
        return (
            Asynchronous(rate)
            if name == "asynchronous"
            else partial(algorithm_1, rate=rate, fit=Convex(rate))
        )
    raise ScheduleError(f"policy: expected none, fixed, threshold, algorithm_1 or asynchronous, got {name}")


def candidates(confidences: Array, room: Array) -> Array:
    """The input of a policy: ``confidences`` [R, G], with 0 beyond the first ``room`` [R] drafts of each request."""
    within = np.arange(np.shape(confidences)[1]) < room[:, None]
    return np.where(within, np.maximum(confidences, LEAST), 0.0)


def _descending(a: Array) -> Array:
    """Flat indices of a [R, G], largest first; ties are ordered by position, then by request.

    No two keys are equal, so the order of two drafts depends only on these two. The order in which a sort places equal
    keys may depend on all others, including later confidences.
    """
    requests, drafts = a.shape
    place = np.arange(drafts) * requests + np.arange(requests)[:, None]
    return np.argsort((((1 - a) * FINE).astype(np.int64) * a.size + place).ravel())


def _promised(a: Array, *rates: Rate) -> tuple[Array, list[Array]]:
    """The order of admission [R G], and for each rate Theta after 0, 1, ..., R G admissions [1 + R G]."""
    requests, order = len(a), _descending(a)
    if not requests:
        return order, [np.zeros(1) for _ in rates]
    tau = requests + np.concatenate([[0.0], np.cumsum(a.ravel()[order])])
    return order, [tau * rate.span(requests, requests + len(order)) for rate in rates]


def _lengths(admitted: Array, shape: tuple[int, ...]) -> Array:
    """Drafts per request [R] among the admitted flat indices."""
    return np.bincount(admitted // shape[1], minlength=shape[0])
