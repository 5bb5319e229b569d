"""Makes the summary of an evaluation (summary.json) from its recorded rounds: counts and metrics by benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from statistics import mean

import pyarrow as pa
import pyarrow.compute as pc

from data_specs.evaluation import DRAFT
from data_specs.results.summary import (
    AnySummary,
    BenchmarkResult,
    BenchmarkResults,
    CalibrationEffect,
    ContextBucket,
    EvaluationFacts,
    Figure,
    Metrics,
    Profile,
    Summary,
    SweepRow,
)
from pipeline.acceptance import Figures, average, by_context, figures, summary


def summarise(
    rounds: pa.Table,
    facts: EvaluationFacts,
    positions: int,
    resamples: int,
    calibration: CalibrationEffect | None = None,
    sweep: list[SweepRow] | None = None,
    profile: Profile | None = None,
    calibration_refused: str | None = None,
) -> Summary:
    """The summary of ``rounds`` with the given sections.

    ``positions`` is the draft's block size, and ``resamples`` the number of bootstrap draws over prompts.
    """
    found = by_benchmark(rounds, facts.prompts, lambda part, seed: figures(part, positions, resamples, seed))
    return Summary(
        facts=facts,
        positions=positions,
        context=_contexts(rounds, positions, resamples),
        calibration=calibration,
        calibration_refused=calibration_refused,
        sweep=sweep,
        profile=profile,
        **vars(found),
    )


def by_benchmark(
    table: pa.Table, prompts: dict[str, int], measure: Callable[[pa.Table, int], Figures]
) -> BenchmarkResults:
    """Counts, metrics and ends of answers by benchmark, and the average of the metrics.

    ``prompts`` are the numbers of selected prompts. ``measure`` computes the figures of a benchmark's rows with its own
    seed, so that benchmarks are resampled independently.
    """
    benchmarks: dict[str, BenchmarkResult] = {}
    parts = []
    for seed, (name, selected) in enumerate(prompts.items()):
        part = table.filter(pc.equal(table["benchmark"], name))
        if part.num_rows == 0:
            benchmarks[name] = BenchmarkResult({"prompts": 0, "too_long": selected}, None, {})
            continue
        found = measure(part, seed)
        parts.append(found)
        counts = {"prompts": found.prompts, "too_long": selected - found.prompts} | found.counts
        drafted = part.filter(pc.equal(part["mode"], DRAFT))
        finishes = Counter(drafted["finish"].drop_null().to_pylist())
        benchmarks[name] = BenchmarkResult(counts, summary(found.metrics), dict(finishes))
    macro = summary(average(parts)) if parts else None
    return BenchmarkResults(order=list(benchmarks), benchmarks=benchmarks, macro=macro)


def _contexts(rounds: pa.Table, positions: int, resamples: int) -> list[ContextBucket]:
    buckets = []
    for low, high, found in by_context(rounds, positions, resamples):
        told, counts = summary(found.metrics), (found.prompts, found.counts["rounds"])
        shown = (told.accepted_length, told.acceptance_rate, told.draft_ms, told.verify_ms)
        buckets.append(ContextBucket(low, high, *counts, *shown))
    return buckets


def flat_metrics(result: AnySummary) -> dict[str, float]:
    """``<benchmark>/<metric>`` -> value, for a tracker; metrics that are lists or have no value are left out."""
    named = {name: result.benchmarks[name].metrics for name in result.order} | {"macro": result.macro}
    values = {}
    for name, metrics in named.items():
        for key in (field.name for field in fields(Metrics) if metrics):
            figure = getattr(metrics, key)
            if isinstance(figure, Figure) and figure.value is not None:
                values[f"{name}/{key}"] = figure.value
    if result.calibration:
        for when in ("before", "after"):
            values[f"calibration/ece_{when}"] = mean_error(result.calibration, when)
    return values


def mean_error(calibration: CalibrationEffect, when: str) -> float:
    """The mean calibration error ``before`` or ``after`` scaling over the positions with rounds (0 without any)."""
    positions = calibration.before if when == "before" else calibration.after
    return mean([quality.ece for quality in positions if quality.rounds] or [0.0])
