"""Sections that put several evaluations side by side."""

from __future__ import annotations

from collections.abc import Sequence

from data_specs.errors import UserError
from data_specs.results.summary import Metrics
from pipeline.report import confidence
from pipeline.report.evaluation import Evaluation
from pipeline.report.figures import (
    COST,
    KINDS,
    LENGTH_PLOT,
    POSITIONS_PLOT,
    benchmark_table,
    by_k,
    curves,
    overview,
    row,
    trained_notes,
)
from pipeline.report.model import (
    MACRO,
    PAGE,
    Block,
    Drawing,
    Drawings,
    Note,
    Section,
    Table,
    cells,
    titles,
    words,
)  # fmt: skip

WORDS = (
    "In brackets: 95 % bootstrap interval over prompts, separately for each evaluation. Compare tokens/s only between "
    "evaluations on the same machine."
)
Rows = list[tuple[str, str, list[Metrics]]]  # title, key in the JSON, metrics of every evaluation


class ReportError(UserError):
    """The evaluations cannot be compared."""


def common_benchmarks(evaluations: Sequence[Evaluation]) -> list[str]:
    """Benchmarks with figures in all evaluations, in the order of the first one. Raises ``ReportError`` without any."""
    shared = [name for name in evaluations[0].named if all(name in one.named for one in evaluations)]
    if not shared:
        each = "; ".join(f"{one.label} has {', '.join(one.named) or 'none'}" for one in evaluations)
        raise ReportError(f"evaluations: expected a common benchmark; {each}")
    return shared


def side_by_side(
    evaluations: Sequence[Evaluation], caption: str = "Figures by benchmark and evaluation"
) -> Section:
    """Accepted length and speedup as drawings, then one row per common benchmark and evaluation."""
    found = _rows(evaluations)
    charts = overview([(title, metrics) for title, _, metrics in found], [one.label for one in evaluations])
    drawn = Drawings(charts, _legend(evaluations), file=LENGTH_PLOT)
    blocks: list[Block] = [drawn, _table(evaluations, found, caption), Note(WORDS)]
    # Evaluations of the same draft have the same notes; each is shown once.
    blocks += dict.fromkeys(note for one in evaluations for note in trained_notes(one))
    shared = common_benchmarks(evaluations)
    others = {one.label: [name for name in one.named if name not in shared] for one in evaluations}
    if left := "; ".join(f"{label}: {', '.join(names)}" for label, names in others.items() if names):
        text = f"Some evaluations lack these benchmarks, so they and the macro average are left out: {left}."
        blocks.append(Note(text))
    return Section("benchmarks", "Benchmarks", blocks)


def _legend(evaluations: Sequence[Evaluation]) -> list[tuple[int, str]]:
    return list(enumerate(one.label for one in evaluations))


def _rows(evaluations: Sequence[Evaluation]) -> Rows:
    """The common benchmarks, and the average if they are several and no evaluation has others."""
    shared = common_benchmarks(evaluations)
    rows: Rows = [(name, name, [one.named[name] for one in evaluations]) for name in shared]
    macros = [one.summary.macro for one in evaluations if one.summary.macro is not None]
    if 1 < len(shared) == max(len(one.named) for one in evaluations) and len(macros) == len(evaluations):
        rows.append((MACRO, "macro", macros))
    return rows


def _table(evaluations: Sequence[Evaluation], found: Rows, caption: str) -> Table:
    rows = [
        [words(title), words(one.label), *row(one, key, m, one.label)]
        for title, key, metrics in found
        for one, m in zip(evaluations, metrics, strict=True)
    ]
    sums = len(evaluations) * (found[-1][1] == "macro")
    strong = frozenset(range(len(rows) - sums, len(rows)))
    return benchmark_table(caption, ("benchmark", "evaluation"), rows, strong)


def positions(evaluations: Sequence[Evaluation]) -> Section:
    """The curves of all evaluations together, first for the average, then for each benchmark."""
    longest = max(one.positions for one in evaluations)
    charts: list[Drawing] = []
    tables = []
    for title, path, metrics in sorted(_rows(evaluations), key=lambda row: row[1] != "macro"):
        for key, kind, formula in KINDS:
            lines = [(one.label, getattr(m, key)) for one, m in zip(evaluations, metrics, strict=True)]
            rows = [(label, f"{path}/{key}", figures, label) for label, figures in lines]
            charts.append(curves(f"{kind}, {title}", formula, lines, longest))
            tables.append(by_k(f"{kind}, {title}", "evaluation", rows, longest))
    drawn = Drawings(charts, _legend(evaluations), "pairs", POSITIONS_PLOT)
    return Section("positions", "Acceptance by position", [drawn, *tables])


def costs(evaluations: Sequence[Evaluation]) -> Section:
    """Milliseconds and shares of drafting and verifying in a round."""
    rows = [
        [words(title), words(one.label), *cells(key, m, COST, one.label)]
        for title, key, metrics in _rows(evaluations)
        for one, m in zip(evaluations, metrics, strict=True)
    ]
    table = Table("Cost of a round", ("benchmark", "evaluation", *titles(COST)), rows, names=2)
    return Section("cost", "Cost of a round", [table])


def calibrations(evaluations: Sequence[Evaluation]) -> Section:
    """Calibration error by position, before and after scaling, of the calibrated evaluations."""
    table = confidence.errors(evaluations, (PAGE,))
    missing = Note("No evaluation is calibrated. evaluate.calibrate=true calibrates one.", absent=True)
    return Section("calibration", confidence.CALIBRATION, [table if table.rows else missing])
