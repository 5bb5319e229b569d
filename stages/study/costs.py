"""What a step of the engine costs: its seconds, which simulations add up, and steps per second, which schedulers read.

A step of r requests verifies B tokens (one anchor per request, and the scheduled drafts). Its ``context`` is the sum of
the requests' positions before their anchors. Costs come from a table (data_specs/sps.py) or from steps that were timed
(timing.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from data_specs.errors import UserError
from data_specs.sps import SpsTable
from pipeline.decoding.steps import Step

Array = np.ndarray


class CostError(UserError):
    """The steps to fit costs on are missing."""


@dataclass(frozen=True)
class Curve:
    """Time as a function of a count, linear between the measured counts (ascending).

    It is constant below them. Above them it continues with the last slope, or with slope 0 if that one is negative.
    """

    counts: Array
    seconds: Array

    @classmethod
    def of(cls, points: Iterable[tuple[float, float] | tuple[float, float, float]]) -> Curve:
        """The curve through (count, seconds), or through (count, seconds, pace) with seconds in units of the pace.

        The value at a count is total seconds / total pace (a missing pace counts as 1). A mean of ratios would be too
        large, because every pace is a single noisy measurement.
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
        """Seconds at ``count``, in the shape of ``count``."""
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
    """Time as a function of two counts: one curve over the second count for each measured value of the first.

    Interpolation over the first count is linear, and constant outside the measured values.
    """

    curves: dict[int, Curve]

    @classmethod
    def of(cls, points: Iterable[tuple[int, float, float] | tuple[int, float, float, float]]) -> Surface:
        """The surface through (first count, second count, seconds), optionally with a pace (see ``Curve.of``)."""
        grouped: dict[int, list[Any]] = {}
        for first, *point in points:
            grouped.setdefault(first, []).append(point)
        return cls({first: Curve.of(grouped[first]) for first in sorted(grouped)})

    def __call__(self, first: float, second: float | Array, scales: bool = False) -> Array:
        """Seconds at the two counts. With ``scales``, it interpolates between points of equal second / first count."""
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
    """Seconds of each part of a step. If ``verify`` knows one number of requests only, just the tokens matter."""

    verify: Surface  # over requests and tokens
    draft: Surface | None  # over drafts in a chain and requests; None without a draft
    prefill: Curve  # over prompt tokens
    position: float = 0.0  # seconds of each position of context beyond those of ``verify``
    schedule: Curve | None = None  # over requests

    def prefill_seconds(self, tokens: int) -> float:
        """Time of one pass over ``tokens`` of prompts; 0 for none."""
        return float(self.prefill(tokens)) if tokens else 0.0

    def draft_seconds(self, requests: int, drafts: int) -> float:
        """Time of one draft pass for ``requests`` chains of ``drafts`` tokens; 0 without a pass."""
        return float(self.draft(drafts, requests)) if self.draft is not None and requests and drafts else 0.0

    def verify_seconds(self, requests: int, tokens: int | Array, context: float) -> Array:
        """Time of one verification pass, in the shape of ``tokens``; all ``requests`` hold ``context`` positions.

        It interpolates between measured numbers of requests at equal tokens per request.
        """
        return self.verify(requests, tokens, scales=True) + self.position * context

    def schedule_seconds(self, requests: int) -> float | None:
        """Time of a policy that reads confidences; None if it is unknown, so that the policy itself must be timed."""
        return None if self.schedule is None else float(self.schedule(requests))

    def scaled(self, factor: float) -> TableCosts:
        """Costs on a machine that takes ``factor`` times as long."""
        return replace(
            self,
            verify=self.verify.scaled(factor),
            draft=None if self.draft is None else self.draft.scaled(factor),
            prefill=self.prefill.scaled(factor),
            position=factor * self.position,
            schedule=None if self.schedule is None else self.schedule.scaled(factor),
        )


def from_table(table: SpsTable, schedule: Curve | None = None) -> TableCosts:
    """Costs from ``table``. Prompt tokens cost as much as verified ones, and a draft pass the same for any chain.

    The time of the context at which the table was measured is subtracted from its points, because ``position`` adds it.
    """
    held = table.position_seconds * table.context
    passes = Curve.of((tokens, 1 / rate - held) for tokens, rate in table.points)
    return TableCosts(
        Surface({1: passes}), Surface({1: Curve.of(table.draft)}), passes, table.position_seconds, schedule
    )


def from_steps(steps: Sequence[Step], least: int = 3) -> TableCosts:
    """Costs from timed steps (timing.py), in units of their pace; ``TableCosts.scaled`` by a pace gives seconds.

    Numbers of requests with fewer than ``least`` steps are left out, unless there are no others. Costs do not depend on
    the context here, so time prompts as long as those to be served. Raises ``CostError`` if no step verified or none
    prefilled.
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
    """SPS(B) of whole steps for each number of requests; the scheduler weighs another verified token against it.

    A step includes the draft pass for chains of ``drafts`` tokens. ``context`` is the average number of positions of a
    request. Seconds never fall with B, because the early stop of Algorithm 1 needs a monotone fit.
    """

    def __init__(self, costs: TableCosts, drafts: int, context: float = 0.0) -> None:
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
