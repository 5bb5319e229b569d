"""The summary of an evaluation (summary.json): counts and metrics by benchmark, from the rounds that were recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from data_specs.evaluation import DRAFT
from pipeline.acceptance import Figures, average, by_context, figures, summary

SUMMARY, MARKDOWN = "summary.json", "summary.md"


@dataclass(frozen=True)
class EvaluationFacts:
    """What was evaluated, and how: recorded in the summary, shown under the table."""

    draft: str
    target: str
    sampler: dict[str, Any]  # as it acts: Sampler.effective()
    threshold: float
    max_new_tokens: int
    thinking: bool | None
    device: str
    dtype: str
    prompts: dict[str, int]  # selected, by benchmark
    batch: int = 1  # prompts at a time
    trained: dict[str, int] | None = (
        None  # prompts that the draft was trained on, by benchmark; None: not known
    )


def summarise(rounds: pa.Table, facts: EvaluationFacts, positions: int, resamples: int) -> dict[str, Any]:
    """What summary.json holds.

    ``positions`` is the draft's block size, ``resamples`` the number of bootstrap draws over prompts.
    """
    found = by_benchmark(rounds, facts.prompts, lambda part, seed: figures(part, positions, resamples, seed))
    contexts = _contexts(rounds, positions, resamples)
    return {"facts": vars(facts), "positions": positions, "context": contexts} | found


def by_benchmark(
    table: pa.Table, prompts: dict[str, int], measure: Callable[[pa.Table, int], Figures]
) -> dict[str, Any]:
    """Counts, metrics and ends of answers of every benchmark, and the average of the metrics.

    ``prompts``: how many were selected; ``measure`` gives the figures of a benchmark's rows and a seed: benchmarks are
    resampled independently.
    """
    benchmarks: dict[str, Any] = {}
    parts = []
    for seed, (name, selected) in enumerate(prompts.items()):
        part = table.filter(pc.equal(table["benchmark"], name))
        if part.num_rows == 0:
            benchmarks[name] = {"counts": {"prompts": 0, "too_long": selected}, "metrics": None, "finish": {}}
            continue
        found = measure(part, seed)
        parts.append(found)
        counts = {"prompts": found.prompts, "too_long": selected - found.prompts} | found.counts
        benchmarks[name] = {"counts": counts, "metrics": summary(found.metrics), "finish": _finishes(part)}
    return {
        "order": list(benchmarks),  # as asked for: JSON objects are written with sorted keys
        "benchmarks": benchmarks,
        "macro": summary(average(parts)) if parts else None,
        "calibration": None,
        "sweep": None,
    }


def _finishes(table: pa.Table) -> dict[str, int]:
    """How many answers made with the draft ended by EOS, and how many at the length limit."""
    drafted = table.filter(pc.equal(table["mode"], DRAFT))
    return {
        item["values"]: item["counts"] for item in drafted["finish"].drop_null().value_counts().to_pylist()
    }


def _contexts(rounds: pa.Table, positions: int, resamples: int) -> list[dict[str, Any]]:
    shown = ("accepted_length", "acceptance_rate", "draft_ms", "verify_ms")
    return [
        {"from": low, "to": high, "prompts": f.prompts, "rounds": f.counts["rounds"]}
        | {name: value for name, value in summary(f.metrics).items() if name in shown}
        for low, high, f in by_context(rounds, positions, resamples)
    ]


def flat_metrics(result: dict[str, Any]) -> dict[str, float]:
    """``<benchmark>/<metric>`` -> value of every scalar metric that has one, for a tracker."""
    named = {name: result["benchmarks"][name]["metrics"] for name in result["order"]} | {
        "macro": result["macro"]
    }
    return {
        f"{name}/{key}": figure["value"]
        for name, metrics in named.items()
        for key, figure in (metrics or {}).items()
        if isinstance(figure, dict) and figure["value"] is not None
    } | _mean_errors(result.get("calibration"))


def mean_error(calibration: dict[str, Any], when: str) -> float:
    """The mean calibration error ``before`` or ``after``, over the positions that a round reached (0 for none)."""
    return mean([float(quality["ece"]) for quality in calibration[when] if quality["rounds"]] or [0.0])


def _mean_errors(calibration: dict[str, Any] | None) -> dict[str, float]:
    if not calibration:
        return {}
    return {f"calibration/ece_{when}": mean_error(calibration, when) for when in ("before", "after")}
