"""Computes the table and figures of a comparison from the rounds of its evaluations.

Each of them counts only the prompts that all of its variants answered. Each benchmark has its own bootstrap seed, which
is the same for all variants (pairing.py says why).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_specs.results.comparison import ComparisonFigure, ComparisonTable, SpeedRow, StepShare, TableRow
from pipeline.acceptance import Array, Figures, average, estimate, figures, summary
from pipeline.config import FigureConfig
from pipeline.report.model import MACRO
from stages.compare.pairing import common


@dataclass(frozen=True)
class VariantEvaluation:
    """The evaluation of one variant."""

    rounds: pa.Table
    positions: int  # drafts in a round, at most


def main_table(
    measured: dict[str, VariantEvaluation],
    benchmarks: Sequence[str],
    resamples: int,
    variants: Mapping[str, str],
) -> ComparisonTable:
    """Accepted length, its ratio to the first drafter's, speed and acceptance by position, for all drafters.

    ``variants`` maps each drafter to the variant that stands for it.
    """
    rounds = common({name: m.rounds for name, m in measured.items()})
    positions = {name: m.positions for name, m in measured.items()}
    parts = _parts(rounds, positions, benchmarks, resamples)
    macro = {name: average(list(found.values())) for name, found in parts.items()}
    reference = next(iter(measured))
    first = parts[reference]
    rows = {
        benchmark: _row(
            {name: found[benchmark].metrics for name, found in parts.items()}, reference, one.prompts
        )
        for benchmark, one in first.items()
    }
    total = sum(row.prompts for row in rows.values())
    if len(first) > 1:
        rows[MACRO] = _row(macro, reference, total)
    told = {name: summary(metrics) for name, metrics in macro.items()}
    # Few rounds reach late positions, and an average over benchmarks would give one of them the weight of many.
    conditional = {
        name: summary(figures(table, positions[name], resamples).metrics).conditional
        for name, table in rounds.items()
    }
    speed = [field.name for field in fields(SpeedRow)]
    return ComparisonTable(
        drafters=list(measured),
        order=list(rows),  # JSON objects are written with sorted keys
        rows=rows,
        prompts=total,
        conditional=conditional,
        speed={name: SpeedRow(*(getattr(found, key) for key in speed)) for name, found in told.items()},
        variants=dict(variants),
    )


def figure(
    asked: FigureConfig,
    variants: dict[str, list[str]],
    measured: dict[str, VariantEvaluation],
    benchmarks: Sequence[str],
    resamples: int,
    latency: dict[str, list[StepShare]] | None = None,
) -> ComparisonFigure:
    """Macro-averaged accepted length of every drafter at each value that is ``asked`` for.

    ``variants`` maps each drafter to its variants, one per value, and ``measured`` each variant to its evaluation.
    """
    places = {
        f"{drafter} {value}": measured[name]
        for drafter, names in variants.items()
        for value, name in zip(asked.values, names, strict=True)
    }
    rounds = common({place: m.rounds for place, m in places.items()})
    parts = _parts(rounds, {place: m.positions for place, m in places.items()}, benchmarks, resamples)
    lengths = {place: average(list(found.values()))["accepted_length"] for place, found in parts.items()}
    first = next(iter(parts.values()))
    return ComparisonFigure(
        title=asked.title,
        key=asked.key,
        drafters=list(variants),
        values=list(asked.values),
        prompts=sum(found.prompts for found in first.values()),
        accepted_length={d: [estimate(lengths[f"{d} {value}"]) for value in asked.values] for d in variants},
        variants=variants,
        latency=latency,
    )


def _parts(
    rounds: dict[str, pa.Table], positions: dict[str, int], benchmarks: Sequence[str], resamples: int
) -> dict[str, dict[str, Figures]]:
    """Variant -> benchmark (if it has rounds) -> figures, with the same resamples in all variants."""
    return {
        name: {
            benchmark: figures(part, positions[name], resamples, seed)
            for seed, benchmark in enumerate(benchmarks)
            if (part := table.filter(pc.equal(table["benchmark"], benchmark))).num_rows
        }
        for name, table in rounds.items()
    }


def _row(metrics: dict[str, dict[str, Array]], reference: str, prompts: int) -> TableRow:
    """Accepted length of every drafter and its ratio to the reference's, taken resample by resample."""
    lengths = {name: found["accepted_length"] for name, found in metrics.items()}
    return TableRow(
        accepted_length={name: estimate(values) for name, values in lengths.items()},
        ratio={name: estimate(paired_ratio(values, lengths[reference])) for name, values in lengths.items()},
        prompts=prompts,
    )


def paired_ratio(values: Array, reference: Array) -> Array:
    """Quotient [1+R] of two drafters' figures: of their values, and of each of R resamples. NaN without a reference."""
    assert values.shape == reference.shape, "both are figures of the same prompts and resamples"
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(reference > 0, values / reference, np.nan)
