"""The figures of a comparison from the rounds of its evaluations: what comparison.json holds.

Every table and figure counts the prompts only that all of its variants answered. Each benchmark is resampled by a
seed of its own, the same for all variants (stages/compare/pairing.py says why).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.acceptance import Array, Figures, average, figures, summary
from pipeline.report.model import MACRO
from stages.compare.pairing import common

SPEED = ("acceptance_rate", "drafted_length", "draft_ms", "verify_ms", "tokens_per_second", "speedup")


@dataclass(frozen=True)
class VariantEvaluation:
    """The evaluation of one variant."""

    rounds: pa.Table
    positions: int  # drafts a round, at most


def main_table(
    measured: dict[str, VariantEvaluation], benchmarks: Sequence[str], resamples: int
) -> dict[str, Any]:
    """Accepted length by benchmark and drafter, its ratio to the first drafter's, speed, acceptance by position."""
    rounds = common({name: m.rounds for name, m in measured.items()})
    positions = {name: m.positions for name, m in measured.items()}
    parts = _parts(rounds, positions, benchmarks, resamples)
    macro = {name: average(list(found.values())) for name, found in parts.items()}
    reference = next(iter(measured))
    there = list(parts[reference])
    rows = {b: _row({name: found[b].metrics for name, found in parts.items()}, reference) for b in there}
    for benchmark in there:
        rows[benchmark]["prompts"] = parts[reference][benchmark].prompts
    total = sum(rows[b]["prompts"] for b in there)
    if len(there) > 1:
        rows[MACRO] = _row(macro, reference) | {"prompts": total}
    told = {name: summary(metrics) for name, metrics in macro.items()}
    return {
        "drafters": list(measured),
        "order": list(rows),  # JSON objects are written with sorted keys
        "rows": rows,
        "prompts": total,
        "conditional": {name: _conditional(rounds[name], positions[name], resamples) for name in measured},
        "speed": {name: {key: found[key] for key in SPEED} for name, found in told.items()},
    }


def figure(
    lines: dict[str, list[VariantEvaluation]],
    values: Sequence[int],
    benchmarks: Sequence[str],
    resamples: int,
) -> dict[str, Any]:
    """Macro-averaged accepted length of every drafter at each of ``values``."""
    pairs = {name: zip(values, line, strict=True) for name, line in lines.items()}
    places = {f"{name} {value}": m for name, line in pairs.items() for value, m in line}
    rounds = common({place: m.rounds for place, m in places.items()})
    parts = _parts(rounds, {place: m.positions for place, m in places.items()}, benchmarks, resamples)
    lengths = {place: average(list(found.values()))["accepted_length"] for place, found in parts.items()}
    first = next(iter(parts.values()))
    return {
        "drafters": list(lines),
        "values": list(values),
        "prompts": sum(found.prompts for found in first.values()),
        "accepted_length": {name: [_told(lengths[f"{name} {value}"]) for value in values] for name in lines},
    }


def _parts(
    rounds: dict[str, pa.Table], positions: dict[str, int], benchmarks: Sequence[str], resamples: int
) -> dict[str, dict[str, Figures]]:
    """Variant -> benchmark (of those with rounds) -> figures, with the same resamples in all variants."""
    return {
        name: {
            benchmark: figures(part, positions[name], resamples, seed)
            for seed, benchmark in enumerate(benchmarks)
            if (part := table.filter(pc.equal(table["benchmark"], benchmark))).num_rows
        }
        for name, table in rounds.items()
    }


def _conditional(rounds: pa.Table, positions: int, resamples: int) -> list[dict[str, Any]]:
    """Conditional acceptance by position over the prompts of all benchmarks together.

    Late positions are reached by few rounds: an average over benchmarks would give one round the weight of many.
    """
    return summary(figures(rounds, positions, resamples).metrics)["conditional"]


def _row(metrics: dict[str, dict[str, Array]], reference: str) -> dict[str, Any]:
    """Accepted length of every drafter, and its ratio to the reference's, resample by resample."""
    lengths = {name: found["accepted_length"] for name, found in metrics.items()}
    return {
        "accepted_length": {name: _told(values) for name, values in lengths.items()},
        "ratio": {name: _told(paired_ratio(values, lengths[reference])) for name, values in lengths.items()},
    }


def paired_ratio(values: Array, reference: Array) -> Array:
    """Quotient [1+R] of two drafters' figures: of the values, and of each resample, which has the same prompts.

    NaN where the reference has no value.
    """
    assert values.shape == reference.shape, "both are figures of the same prompts and resamples"
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(reference > 0, values / reference, np.nan)


def _told(values: Array) -> dict[str, Any]:
    """Value and 95 % interval of ``values`` [1+R]."""
    return summary({"it": values})["it"]
