"""Sections that put several evaluations side by side."""

from __future__ import annotations

from collections.abc import Sequence

from data_specs.errors import UserError
from data_specs.results.summary import Metrics
from pipeline.report import confidence
from pipeline.report.evaluation import Evaluation
from pipeline.report.figures import (
    BY_POSITION,
    COST,
    FIGURES,
    KINDS,
    LENGTH_PLOT,
    NARROW,
    POSITIONS_PLOT,
    by_k,
    curves,
    overview,
    row,
    trained_notes,
)
from pipeline.report.model import (
    EVERYWHERE,
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
    "In brackets: 95 % bootstrap interval over prompts, for each evaluation by itself. Compare tokens/s only between "
    "evaluations on the same machine."
)
Rows = list[tuple[str, str, list[Metrics]]]  # title, key in the JSON, metrics of every evaluation


class ReportError(UserError):
    """Evaluations that cannot be compared; the message names them."""


def common_benchmarks(evaluations: Sequence[Evaluation]) -> list[str]:
    """Benchmarks with figures in all of the evaluations, in the first one's order.

    Raises ``ReportError`` with the benchmarks of each when there is none.
    """
    shared = [name for name in evaluations[0].named if all(name in one.named for one in evaluations)]
    if not shared:
        each = "; ".join(f"{one.label} has {', '.join(one.named) or 'none'}" for one in evaluations)
        raise ReportError(f"evaluations: expected a benchmark that all of them have; {each}")
    return shared


def side_by_side(
    evaluations: Sequence[Evaluation], caption: str = "Figures by benchmark and evaluation"
) -> Section:
    """Accepted length and speedup as drawings, then a row for every shared benchmark and evaluation."""
    found = _rows(evaluations)
    charts = overview([(title, metrics) for title, _, metrics in found], [one.label for one in evaluations])
    drawn = Drawings(charts, _legend(evaluations), file=LENGTH_PLOT)
    blocks: list[Block] = [drawn, _table(evaluations, found, caption), Note(WORDS)]
    # The same draft is warned of once.
    blocks += dict.fromkeys(note for one in evaluations for note in trained_notes(one))
    shared = common_benchmarks(evaluations)
    others = {one.label: [name for name in one.named if name not in shared] for one in evaluations}
    left = "; ".join(f"{label}: {', '.join(names)}" for label, names in others.items() if names)
    if left:
        blocks.append(
            Note(
                f"Some evaluations lack these benchmarks, so they and the macro average are left out: {left}."
            )
        )
    return Section("benchmarks", "Benchmarks", blocks)


def _legend(evaluations: Sequence[Evaluation]) -> list[tuple[int, str]]:
    return [(style, one.label) for style, one in enumerate(evaluations)]


def _rows(evaluations: Sequence[Evaluation]) -> Rows:
    """The shared benchmarks, and the average if there are several and no evaluation has others."""
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
    heads = ("benchmark", "evaluation", "prompts", *titles(FIGURES))
    parts = [("benchmark", "evaluation", *part) for part in NARROW]
    return Table(
        caption, heads, rows, strong, names=2, where=EVERYWHERE, parts=parts, text_only=(BY_POSITION,)
    )


def positions(evaluations: Sequence[Evaluation]) -> Section:
    """The curves of all evaluations over each other: of the average first, then benchmark by benchmark."""
    longest = max(one.positions for one in evaluations)
    charts: list[Drawing] = []
    tables = []
    found = _rows(evaluations)
    for title, path, metrics in sorted(found, key=lambda row: row[1] != "macro"):
        lines = [(one.label, m) for one, m in zip(evaluations, metrics, strict=True)]
        rows = [(label, path, m, label) for label, m in lines]
        for key, kind, formula in KINDS:
            charts.append(curves(f"{kind}, {title}", key, formula, lines, longest))
            tables.append(by_k(f"{kind}, {title}", "evaluation", key, rows, longest))
    drawn = Drawings(charts, _legend(evaluations), "pairs", POSITIONS_PLOT)
    return Section("positions", "Acceptance by position", [drawn, *tables])


def costs(evaluations: Sequence[Evaluation]) -> Section:
    """Milliseconds and shares of a round."""
    rows = [
        [words(title), words(one.label), *cells(key, m, COST, one.label)]
        for title, key, metrics in _rows(evaluations)
        for one, m in zip(evaluations, metrics, strict=True)
    ]
    table = Table("Cost of a round", ("benchmark", "evaluation", *titles(COST)), rows, names=2)
    return Section("cost", "Cost of a round", [table])


def calibrations(evaluations: Sequence[Evaluation]) -> Section:
    """Calibration error by position, before and after, of those evaluations that have it."""
    table = confidence.errors(evaluations, (PAGE,))
    missing = Note("No evaluation is calibrated. evaluate.calibrate=true calibrates one.", absent=True)
    return Section("calibration", confidence.CALIBRATION, [table if table.rows else missing])
