"""What a step of the engine costs: the seconds that a simulation adds up, and SPS(B) for the scheduler.

A step of r requests verifies B tokens (an anchor a request and scheduled drafts) over ``context`` positions, the sum
of those before the anchors. Costs come from a table (data_specs/sps.py) or from steps that were timed (step_timing.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from data_specs.errors import UserError
from data_specs.sps import SpsTable
from pipeline.decoding.steps import Step

Array = np.ndarray


class CostError(UserError):
    """Nothing that a cost could be read from; the message says what was expected."""


class Costs(Protocol):
    """Seconds of the parts of a step."""

    def schedule_seconds(self, requests: int) -> float | None:
        """Seconds of a policy that looks at confidences; None: it is really run, and its own time counts."""

    def prefill_seconds(self, tokens: int) -> float:
        """Taking in ``tokens`` of prompts in one pass, or 0 for none."""

    def draft_seconds(self, requests: int, drafts: int) -> float:
        """One draft pass of chains of ``drafts`` for ``requests``; 0 without one."""

    def verify_seconds(self, requests: int, tokens: int | Array, context: float) -> Array:
        """One verification pass of ``tokens`` of ``requests`` that hold ``context`` positions together.

        Several numbers of tokens give as many seconds.
        """


@dataclass(frozen=True)
class Curve:
    """Seconds by a count, linear between measured counts (ascending); the last slope is carried on, unless it falls."""

    counts: Array
    seconds: Array

    @classmethod
    def of(cls, points: Iterable[tuple[float, float] | tuple[float, float, float]]) -> Curve:
        """The curve through (count, seconds), or (count, seconds, pace) for seconds in units of the pace.

        Of one count it is total seconds over total pace (1 each, where none is given): total times go by means, and a
        mean of ratios would be too large, as every pace is a single noisy measurement.
        """
        totals: dict[float, list[float]] = {}
        for count, seconds, *pace in points:
            total = totals.setdefault(count, [0.0, 0.0])
            total[0] += seconds
            total[1] += pace[0] if pace else 1.0
        if not totals:
            raise CostError("costs: expected at least one measured count, got none")
        counts = sorted(totals)
        values = [totals[count][0] / totals[count][1] for count in counts]
        return cls(np.array(counts, dtype=np.float64), np.array(values, dtype=np.float64))

    def __call__(self, count: float | Array) -> Array:
        """Seconds at ``count``, of its shape."""
        inside = np.interp(count, self.counts, self.seconds)
        if len(self.counts) == 1:
            return inside
        (x0, x1), (y0, y1) = self.counts[-2:], self.seconds[-2:]
        return inside + max(0.0, (y1 - y0) / (x1 - x0)) * np.maximum(0.0, np.asarray(count) - x1)

    def scaled(self, factor: float) -> Curve:
        """All seconds times ``factor``."""
        return replace(self, seconds=factor * self.seconds)


@dataclass(frozen=True)
class Surface:
    """Seconds by two counts: a curve by the second for some values of the first, linear between those, flat beyond."""

    curves: dict[int, Curve]

    @classmethod
    def of(cls, points: Iterable[tuple[int, float, float] | tuple[int, float, float, float]]) -> Surface:
        """The surface through (first count, second count, seconds), or these and a pace (``Curve.of``)."""
        grouped: dict[int, list[Any]] = {}
        for first, *point in points:
            grouped.setdefault(first, []).append(point)
        return cls({first: Curve.of(grouped[first]) for first in sorted(grouped)})

    def __call__(self, first: float, second: float | Array, scales: bool = False) -> Array:
        """Seconds at the two counts; ``scales``: the second goes with the first, what is compared is their ratio."""
        known = list(self.curves)
        place = int(np.searchsorted(known, first))
        low, high = known[max(0, place - 1)], known[min(place, len(known) - 1)]
        share = 0.0 if low == high else (first - low) / (high - low)
        at = [np.asarray(second) * (end / first if scales and len(known) > 1 else 1) for end in (low, high)]
        return (1 - share) * self.curves[low](at[0]) + share * self.curves[high](at[1])

    def scaled(self, factor: float) -> Surface:
        """All seconds times ``factor``."""
        return Surface({first: curve.scaled(factor) for first, curve in self.curves.items()})


@dataclass(frozen=True)
class TableCosts:
    """Costs that were measured at some counts: ``verify`` by requests and tokens, ``draft`` by chain and requests.

    ``verify`` with one number of requests goes by tokens alone. ``draft`` None: nothing is drafted.
    """

    verify: Surface
    draft: Surface | None
    prefill: Curve
    position: float = 0.0  # seconds of each position of context beyond those of ``verify``
    schedule: Curve | None = None  # by requests

    def prefill_seconds(self, tokens: int) -> float:
        """See ``Costs``."""
        return float(self.prefill(tokens)) if tokens else 0.0

    def draft_seconds(self, requests: int, drafts: int) -> float:
        """See ``Costs``."""
        return float(self.draft(drafts, requests)) if self.draft is not None and requests and drafts else 0.0

    def verify_seconds(self, requests: int, tokens: int | Array, context: float) -> Array:
        """See ``Costs``. Between two measured numbers of requests linear, at the same tokens a request."""
        return self.verify(requests, tokens, scales=True) + self.position * context

    def schedule_seconds(self, requests: int) -> float | None:
        """See ``Costs``."""
        return None if self.schedule is None else float(self.schedule(requests))

    def scaled(self, factor: float) -> TableCosts:
        """The same on a machine that takes ``factor`` times as long."""
        return replace(
            self,
            verify=self.verify.scaled(factor),
            draft=None if self.draft is None else self.draft.scaled(factor),
            prefill=self.prefill.scaled(factor),
            position=factor * self.position,
            schedule=None if self.schedule is None else self.schedule.scaled(factor),
        )


def from_table(table: SpsTable, schedule: Curve | None = None) -> TableCosts:
    """Costs by ``table``: a prompt's tokens cost what verified ones do, a draft pass the same for any chain.

    The positions that the table was measured with count as in its points: only those beyond cost more.
    """
    held = table.position_seconds * table.context
    passes = Curve.of((tokens, 1 / rate - held) for tokens, rate in table.points)
    return TableCosts(
        Surface({1: passes}), Surface({1: Curve.of(table.draft)}), passes, table.position_seconds, schedule
    )


def from_steps(steps: Sequence[Step], least: int = 3) -> TableCosts:
    """Costs by steps of the engine (step_timing.py), in units of their pace: means by requests, tokens and drafts.

    ``TableCosts.scaled`` by a pace gives the seconds of a machine of that speed. Numbers of requests with fewer than
    ``least`` steps are left out, unless there are no others. Context is not told apart: time prompts as long as those
    that will be served. Raises ``CostError`` without a step that verified, or none that prefilled.
    """
    verified = [s for s in steps if s.requests]
    prefilled = [(s.prefilled, s.prefill_seconds, s.pace) for s in steps if s.prefilled]
    if not verified or not prefilled:
        raise CostError(
            f"costs: expected steps that prefill and steps that verify, got {len(prefilled)} and {len(verified)}"
        )
    seen = Counter(s.requests for s in verified)
    often = [s for s in verified if seen[s.requests] >= min(least, max(seen.values()))]
    drafted = [(s.drafted // s.requests, s.requests, s.draft_seconds, s.pace) for s in often if s.drafted]
    return TableCosts(
        Surface.of((s.requests, s.verified, s.verify_seconds, s.pace) for s in often),
        Surface.of(drafted) if drafted else None,
        Curve.of(prefilled),
        schedule=Curve.of((s.requests, s.schedule_seconds, s.pace) for s in often),
    )


class StepRates:
    """SPS(B) of whole steps, by the number of requests: what a scheduler weighs a token more against.

    The draft pass of chains of ``drafts`` and the context cost the same whatever is verified, so they belong to the
    step. ``context``: positions of a request, on average. Seconds are taken to rise with B (the monotone fit that
    Algorithm 1's early stop needs).
    """

    def __init__(self, costs: Costs, drafts: int, context: float = 0.0) -> None:
        self.costs, self.drafts, self.context = costs, drafts, context
        self._known: dict[tuple[int, int], Array] = {}

    def span(self, first: int, last: int) -> Array:
        """See ``scheduler.Rate``."""
        if (first, last) not in self._known:
            tokens = np.arange(first, last + 1)
            verify = self.costs.verify_seconds(first, tokens, first * self.context)
            seconds = self.costs.draft_seconds(first, self.drafts) + verify
            self._known[first, last] = 1 / np.maximum.accumulate(seconds)
        return self._known[first, last]
