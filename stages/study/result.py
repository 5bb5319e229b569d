"""Computes the contents of study.json from what was recorded: figures, predictions, simulations, fronts and checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import pairwise
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
from stages.study.costs import Curve, StepRates, TableCosts, from_steps, from_table
from stages.study.fronts import Point as FrontPoint
from stages.study.fronts import front, shortfall, sla
from stages.study.measure import MeasuredPoint
from stages.study.metrics import metrics
from stages.study.points import SCHEDULED, Arm, StudyPoint, arms, request_count
from stages.study.simulation import Pool, RecordedAnswer, cycle, poisson, simulate

LIMIT = 0.02  # accepted shortfall against the best fixed length
# Seconds of a scheduling policy in a step, by number of requests (benchmarks/scheduler.py).
SCHEDULE = Curve.of([(1, 26e-6), (256, 75e-6), (2048, 472e-6)])
Repeats = list[tuple[StudyPoint, MeasuredPoint]]  # all repeats of one point


def result_of(
    points: dict[StudyPoint, MeasuredPoint],
    answers: list[RecordedAnswer],
    study: StudyConfig,
    facts: StudyFacts,
    chosen: Sequence[Arm],
    tables: Sequence[SpsTable],
    advance: Callable[[str], None] = lambda _: None,
) -> StudyResult:
    """The contents of study.json from the measured ``points``, and from the ``answers`` that simulations replay.

    Without answers, nothing is simulated. ``advance`` is called with the name of each simulated point.
    """
    grouped = _grouped(points)
    real = [
        _averaged(group[0][0], [metrics(measured.steps, measured.times) for _, measured in group])
        for group in grouped
    ]
    prediction: list[Prediction] = []
    simulated: list[SimulatedPoint] = []
    if answers:
        pool, shapes = Pool.of(answers), shapes_of(points)
        simulated = [_predicted(group, pool, shapes, study, facts) for group in grouped]
        prediction = [_compared(one, other) for one, other in zip(real, simulated, strict=True)]
        for table in tables:
            simulated += _simulated(pool, table, study, facts, chosen, advance)
    closed = {
        name: [point for point in simulated if point.sps == name and point.arrival is None]
        for name in sorted({table.name for table in tables if answers})
    }
    return StudyResult(
        facts=facts,
        real=real,
        simulated=simulated,
        prediction=prediction,
        fronts={name: fronts(found, study.sla) for name, found in ({MEASURED: real} | closed).items()},
        checks={name: checks(found, facts.drafts) for name, found in closed.items()},
    )


# --- measured, and predicted ------------------------------------------------------------------------------


def _grouped(points: dict[StudyPoint, MeasuredPoint]) -> list[Repeats]:
    found: dict[tuple[int, str], Repeats] = {}
    for point, measured in points.items():
        found.setdefault((point.concurrency, point.arm.name), []).append((point, measured))
    return list(found.values())


def _averaged(point: StudyPoint, found: Sequence[LoadMetrics]) -> RealPoint:
    """``point`` with the mean of each figure over the repeats in which it is defined."""
    means: dict[str, Any] = {}
    for name in (field.name for field in fields(LoadMetrics)):
        known = [value for one in found if (value := getattr(one, name)) is not None]
        means[name] = fmean(known) if known else None
    return RealPoint(
        policy=point.arm.name,
        concurrency=point.concurrency,
        metrics=LoadMetrics(**means),
        repeats=len(found),
        throughputs=[one.throughput or 0.0 for one in found],
    )


def shapes_of(points: dict[StudyPoint, MeasuredPoint]) -> dict[int, TableCosts]:
    """Concurrency -> step costs in units of their pace, fitted on the timing runs only (not on the measured points)."""
    timed: dict[int, list[Step]] = {}
    for point, measured in points.items():
        timed.setdefault(point.concurrency, []).extend(measured.before + measured.after)
    return {concurrency: from_steps(steps) for concurrency, steps in timed.items()}


def _predicted(
    repeats: Repeats, pool: Pool, shapes: dict[int, TableCosts], study: StudyConfig, facts: StudyFacts
) -> SimulatedPoint:
    """Simulate the same requests at the pace that the machine had during each repeat (``Step.pace``)."""
    found = []
    for point, measured in repeats:
        costs = shapes[point.concurrency].scaled(fmean(step.pace for step in measured.steps))
        policy = point.arm.policy(StepRates(from_steps(measured.before), facts.drafts))
        load = cycle(pool, request_count(study, point.concurrency))
        run = simulate(pool, load, costs, policy, point.concurrency, point.arm.drafts)
        found.append(metrics(run.steps, run.times))
    return SimulatedPoint(sps=MACHINE, arrival=None, **vars(_averaged(repeats[0][0], found)))


def _compared(real: LoadPoint, simulated: LoadPoint) -> Prediction:
    ours, theirs = _throughput(simulated), _throughput(real)
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
    costs: TableCosts,
    study: StudyConfig,
    arm: Arm,
    slots: int,
    seed: int,
    rate: float | None,
    sps: str,
) -> SimulatedPoint:
    """Simulate one point; the requests replay every answer of the pool equally often."""
    size = len(pool.lengths)
    count = -(-study.simulated_requests_per_slot * slots // size) * size
    context = float(np.mean(pool.prompts + pool.lengths / 2))
    load = cycle(pool, count, None if rate is None else poisson(rate, count, seed), seed)
    policy = arm.policy(StepRates(costs, arm.drafts, context))
    run = simulate(pool, load, costs, policy, slots, arm.drafts, study.simulated_prefill_tokens)
    found = metrics(run.steps, run.times)
    return SimulatedPoint(sps=sps, arrival=rate, policy=arm.name, concurrency=slots, metrics=found)


# --- fronts and checks ------------------------------------------------------------------------------------


def fronts(points: Sequence[LoadPoint], anchors: Sequence[float]) -> Fronts:
    """Front and SLA throughput of each policy over its concurrencies."""
    names = dict.fromkeys(point.policy for point in points)
    found = {name: front(_offers(points, [name])) for name in names}
    return Fronts(points=found, sla={name: sla(points, anchors) for name, points in found.items()})


def _throughput(point: LoadPoint) -> float:
    return point.metrics.throughput or 0.0


def _offers(points: Sequence[LoadPoint], policies: Sequence[str]) -> list[FrontPoint]:
    """(speed, throughput) of the points of ``policies``; the throughput is the steady one if it is known."""
    told = [point.metrics for point in points if point.policy in policies]
    return [(m.speed, m.steady or m.throughput or 0.0) for m in told if m.speed is not None]


def checks(points: Sequence[LoadPoint], drafts: int) -> dict[str, Check]:
    """Scheduler -> how far its front lies below the best fixed length's, and whether its budget falls with load."""
    lengths = [f"fixed_{n}" for n in range(1, drafts + 1)]
    best = front(_offers(points, lengths))
    found = {}
    for name in SCHEDULED:
        budgets = sorted((p.concurrency, p.metrics.budget or 0.0) for p in points if p.policy == name)
        if not budgets:
            continue
        below = shortfall(front(_offers(points, [name])), best)
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
    """The largest share of throughput that ``name`` loses to the best of ``others`` at the same concurrency."""
    own = {point.concurrency: _throughput(point) for point in points if point.policy == name}
    return max(1 - own[point.concurrency] / _throughput(point) for point in points if point.policy in others)


def _plain_ahead_from(points: Sequence[LoadPoint]) -> int | None:
    """The concurrency from which on plain decoding has more throughput than all others; None if there is none."""
    ahead = None
    for concurrency in sorted({point.concurrency for point in points}, reverse=True):
        told = [(_throughput(point), point.policy) for point in points if point.concurrency == concurrency]
        if max(told)[1] != "plain":
            break
        ahead = concurrency
    return ahead


def simulated_arms(chosen: Sequence[Arm], drafts: int) -> list[Arm]:
    """The policies of the study and every fixed length, each once."""
    lengths = arms([f"fixed_{n}" for n in range(1, drafts + 1)], drafts, 0.0)
    return list({arm.name: arm for arm in (*chosen, *lengths)}.values())


def simulated_count(study: StudyConfig, chosen: Sequence[Arm], drafts: int) -> int:
    """Number of points that are simulated for one SPS table."""
    every = len(simulated_arms(chosen, drafts)) * len(study.simulated_concurrencies)
    return every + len(study.arrivals) * len(chosen)


def falls(values: Sequence[float], slack: float = 0.02) -> bool:
    """Whether the last value is below the first, and none exceeds the one before it by more than a ``slack`` share."""
    steady = all(later <= (1 + slack) * sooner for sooner, later in pairwise(values))
    return steady and (len(values) < 2 or values[-1] < values[0])
