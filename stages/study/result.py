"""What a study found, from what was recorded: measured figures, their prediction, simulations, fronts and checks. Pure.

``result_of`` makes the contents of study.json; data_specs/study.py describes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any

import numpy as np

from data_specs.results.study import (
    Check,
    Fronts,
    LoadMetrics,
    LoadPoint,
    Prediction,
    RealPoint,
    SimulatedPoint,
    StudyFacts,
    StudyResult,
)
from data_specs.sps import SpsTable
from data_specs.study import MACHINE, MEASURED
from pipeline.config import StudyConfig
from pipeline.decoding.steps import Step
from stages.study.costs import Costs, Curve, StepRates, TableCosts, from_steps, from_table
from stages.study.fronts import Point as FrontPoint
from stages.study.fronts import front, shortfall, sla
from stages.study.measure import MeasuredPoint
from stages.study.metrics import metrics
from stages.study.points import SCHEDULED, Arm, StudyPoint, arms, request_count
from stages.study.simulation import Pool, RecordedAnswer, cycle, poisson, simulate

LIMIT = 0.02  # by so much a scheduler may lie below the best fixed length
# Of a policy a step, by benchmarks/scheduler.py.
SCHEDULE = Curve.of([(1, 26e-6), (256, 75e-6), (2048, 472e-6)])


@dataclass(frozen=True)
class Recording:
    """Points as they were served, and the answers that simulations replay (none: nothing is simulated)."""

    points: dict[StudyPoint, MeasuredPoint]
    answers: list[RecordedAnswer]


def result_of(
    recorded: Recording,
    study: StudyConfig,
    facts: StudyFacts,
    chosen: Sequence[Arm],
    tables: Sequence[SpsTable],
    advance: Callable[[str], None] = lambda _: None,
) -> StudyResult:
    """The contents of study.json. ``advance`` is told of each simulated point."""
    real = [_real(group) for group in _grouped(recorded.points).values()]
    prediction: list[Prediction] = []
    simulated: list[SimulatedPoint] = []
    if recorded.answers:
        pool = Pool.of(recorded.answers)
        shapes = shapes_of(recorded.points)
        predicted = [
            _predicted(group, pool, shapes, study, facts) for group in _grouped(recorded.points).values()
        ]
        prediction = [_compared(one, other) for one, other in zip(real, predicted, strict=True)]
        simulated = list(predicted)
        for table in tables:
            simulated += _simulated(pool, table, study, facts, chosen, advance)
    names = {table.name for table in tables if recorded.answers}
    return StudyResult(
        facts=facts,
        real=real,
        simulated=simulated,
        prediction=prediction,
        fronts={MEASURED: fronts(real, study.sla)}
        | {name: fronts(_closed(simulated, name), study.sla) for name in sorted(names)},
        checks={name: checks(_closed(simulated, name), facts.drafts) for name in sorted(names)},
    )


# --- measured, and predicted ------------------------------------------------------------------------------


def _grouped(
    points: dict[StudyPoint, MeasuredPoint],
) -> dict[tuple[int, str], list[tuple[StudyPoint, MeasuredPoint]]]:
    """The repeats of each point together, by concurrency."""
    found: dict[tuple[int, str], list[tuple[StudyPoint, MeasuredPoint]]] = {}
    for point, measured in points.items():
        found.setdefault((point.concurrency, point.arm.name), []).append((point, measured))
    return found


def _real(repeats: Sequence[tuple[StudyPoint, MeasuredPoint]]) -> RealPoint:
    found = [metrics(measured.steps, measured.times) for _, measured in repeats]
    point = repeats[0][0]
    return RealPoint(
        policy=point.arm.name,
        concurrency=point.concurrency,
        metrics=_means(found),
        repeats=len(found),
        throughputs=[one.throughput or 0.0 for one in found],
    )


def shapes_of(points: dict[StudyPoint, MeasuredPoint]) -> dict[int, TableCosts]:
    """Concurrency -> what steps cost, in units of their pace, by all the timings at it; no steps of the points."""
    timed: dict[int, list[Step]] = {}
    for point, measured in points.items():
        timed.setdefault(point.concurrency, []).extend(measured.before + measured.after)
    return {concurrency: from_steps(steps) for concurrency, steps in timed.items()}


def _predicted(
    repeats: Sequence[tuple[StudyPoint, MeasuredPoint]],
    pool: Pool,
    shapes: dict[int, TableCosts],
    study: StudyConfig,
    facts: StudyFacts,
) -> SimulatedPoint:
    """The same requests simulated, at the pace that the machine had during each repeat (``Step.pace``)."""
    found = []
    for point, measured in repeats:
        shape = shapes[point.concurrency]
        costs = shape.scaled(fmean(step.pace for step in measured.steps))
        policy = point.arm.policy(StepRates(from_steps(measured.before), facts.drafts))
        load = cycle(pool, request_count(study, point.concurrency))
        run = simulate(pool, load, costs, policy, point.concurrency, point.arm.drafts)
        found.append(metrics(run.steps, run.times))
    point = repeats[0][0]
    return SimulatedPoint(
        sps=MACHINE,
        arrival=None,
        policy=point.arm.name,
        concurrency=point.concurrency,
        metrics=_means(found),
        repeats=len(found),
        throughputs=[one.throughput or 0.0 for one in found],
    )


def _means(found: Sequence[LoadMetrics]) -> LoadMetrics:
    """Every figure's mean over the repeats that have it."""
    return LoadMetrics(**{f.name: _mean(getattr(one, f.name) for one in found) for f in fields(LoadMetrics)})


def _mean(values: Iterable[float | None]) -> Any:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _compared(real: RealPoint, simulated: SimulatedPoint) -> Prediction:
    ours, theirs = simulated.metrics.throughput or 0.0, real.metrics.throughput or 0.0
    return Prediction(
        policy=real.policy, concurrency=real.concurrency, real=theirs, simulated=ours, error=ours / theirs - 1
    )


# --- simulated machines -----------------------------------------------------------------------------------


def _simulated(
    pool: Pool,
    table: SpsTable,
    study: StudyConfig,
    facts: StudyFacts,
    chosen: Sequence[Arm],
    advance: Callable[[str], None],
) -> list[SimulatedPoint]:
    """Every policy and fixed length at every concurrency, and the policies under Poisson arrivals."""
    costs = from_table(table, SCHEDULE)
    found: list[SimulatedPoint] = []
    for concurrency in study.simulated_concurrencies:
        for arm in simulated_arms(chosen, pool.drafts):
            found.append(_point(pool, costs, study, arm, concurrency, facts.seed, None, table.name))
            advance(f"{arm.name} at {concurrency}")
    most = max(study.simulated_concurrencies)
    fixed = [_throughput(point) for point in found if point.policy.startswith("fixed")]
    for load in study.arrivals:
        rate = load * max(fixed) / float(pool.lengths.mean())
        for arm in chosen:
            found.append(_point(pool, costs, study, arm, most, facts.seed, rate, table.name))
            advance(f"{arm.name} at {rate:.0f} requests/s")
    return found


def _point(
    pool: Pool,
    costs: Costs,
    study: StudyConfig,
    arm: Arm,
    slots: int,
    seed: int,
    rate: float | None,
    sps: str,
) -> SimulatedPoint:
    """Every answer of the pool as often as any other."""
    size = len(pool.lengths)
    count = -(-study.simulated_requests_per_slot * slots // size) * size
    context = float(np.mean(pool.prompts + pool.lengths / 2))
    load = cycle(pool, count, None if rate is None else poisson(rate, count, seed), seed)
    policy = arm.policy(StepRates(costs, arm.drafts, context))
    run = simulate(pool, load, costs, policy, slots, arm.drafts, study.simulated_prefill_tokens)
    found = metrics(run.steps, run.times)
    return SimulatedPoint(sps=sps, arrival=rate, policy=arm.name, concurrency=slots, metrics=found)


def _closed(simulated: Sequence[SimulatedPoint], name: str) -> list[SimulatedPoint]:
    """The points of an SPS table at which all requests came at once."""
    return [point for point in simulated if point.sps == name and point.arrival is None]


# --- fronts and checks ------------------------------------------------------------------------------------


def fronts(points: Sequence[LoadPoint], anchors: Sequence[float]) -> Fronts:
    """Front and SLA throughput of each policy, over its concurrencies."""
    names = dict.fromkeys(point.policy for point in points)
    found = {name: front(_offers(points, [name])) for name in names}
    return Fronts(points=found, sla={name: sla(points, anchors) for name, points in found.items()})


def _throughput(point: LoadPoint) -> float:
    return point.metrics.throughput or 0.0


def _offers(points: Sequence[LoadPoint], policies: Sequence[str]) -> list[FrontPoint]:
    """(speed, throughput while slots are refilled, or over all) of the points of ``policies``."""
    told = [point.metrics for point in points if point.policy in policies]
    return [(m.speed, m.steady or m.throughput or 0.0) for m in told if m.speed is not None]


def checks(points: Sequence[LoadPoint], drafts: int) -> dict[str, Check]:
    """For each scheduler: how far its front lies below the best fixed length's, and whether its budget falls."""
    lengths = [f"fixed_{n}" for n in range(1, drafts + 1)]
    best = front(_offers(points, lengths))
    found = {}
    for name in SCHEDULED:
        own = [point for point in points if point.policy == name]
        if not own:
            continue
        below = shortfall(front(_offers(own, [name])), best)
        budgets = sorted((point.concurrency, point.metrics.budget or 0.0) for point in own)
        found[name] = Check(
            against=lengths,
            shortfall=below,
            plain_ahead_from=_plain_ahead_from(points),
            same_load=_same_load(points, name, lengths),
            limit=LIMIT,
            holds=below <= LIMIT,
            budgets=budgets,
            budget_falls=falls([budget for _, budget in budgets]),
        )
    return found


def _same_load(points: Sequence[LoadPoint], name: str, others: Sequence[str]) -> float:
    """The largest share of throughput that ``name`` misses against the best of ``others`` at the same concurrency."""
    own = {point.concurrency: _throughput(point) for point in points if point.policy == name}
    return max(1 - own[point.concurrency] / _throughput(point) for point in points if point.policy in others)


def _plain_ahead_from(points: Sequence[LoadPoint]) -> int | None:
    """The least concurrency from which on plain decoding has more throughput than all others; None: nowhere."""
    ahead = None
    for concurrency in sorted({point.concurrency for point in points}, reverse=True):
        told = [(_throughput(point), point.policy) for point in points if point.concurrency == concurrency]
        if max(told)[1] != "plain":
            break
        ahead = concurrency
    return ahead


def simulated_arms(chosen: Sequence[Arm], drafts: int) -> list[Arm]:
    """The policies of the study, and every fixed length."""
    lengths = arms([f"fixed_{n}" for n in range(1, drafts + 1)], drafts, 0.0)
    return list({arm.name: arm for arm in (*chosen, *lengths)}.values())


def simulated_count(study: StudyConfig, chosen: Sequence[Arm], drafts: int) -> int:
    """Points that are simulated for one SPS table."""
    every = len(simulated_arms(chosen, drafts)) * len(study.simulated_concurrencies)
    return every + len(study.arrivals) * len(chosen)


def falls(values: Sequence[float], slack: float = 0.02) -> bool:
    """Whether ``values`` end below where they began, and never rise by more than ``slack`` of themselves."""
    steady = all(later <= (1 + slack) * sooner for sooner, later in zip(values, values[1:], strict=False))
    return steady and (len(values) < 2 or values[-1] < values[0])
