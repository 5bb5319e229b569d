"""Acceptance by position: survival and conditional acceptance, as curves with shaded intervals and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.report.evaluation import Evaluation
from pipeline.report.model import Cell, Drawing, Drawings, Note, Section, Table, told, words
from pipeline.report.svg import Axis, plot, series, shares, swatch

KINDS = (  # metric, title, formula
    ("survival", "Survival", "P(accepted ≥ k)"),
    ("conditional", "Conditional acceptance", "P(accepted ≥ k | reached k)"),
)
WORDS = (
    "Survival: share of rounds that accept at least k drafts. Conditional acceptance: the same of those that accepted "
    "k - 1 and proposed a k-th. Shaded: 95 % bootstrap interval over prompts."
)
Lines = Sequence[tuple[str, dict[str, Any]]]  # label and metrics


def by_position(evaluation: Evaluation) -> Section:
    """A line a benchmark; the figures below, on a click."""
    named, longest = list(evaluation.named.items()), evaluation.positions
    charts = [Drawing(title, curves(title, key, formula, named, longest)) for key, title, formula in KINDS]
    legend = [(swatch(style), name) for style, (name, _) in enumerate(named)]
    tables = []
    for key, title, formula in KINDS:
        rows = [[words(name), *figures(path, key, m, longest)] for name, path, m in evaluation.rows]
        tables.append(Table(f"{title}: {formula}", columns("benchmark", longest), rows, folded=True))
    return Section("positions", "Acceptance by position", [Drawings(charts, legend), Note(WORDS), *tables])


def curves(title: str, key: str, formula: str, lines: Lines, longest: int) -> Any:
    """The curves of metric ``key``, a line for each of ``lines``, over positions 1 ... ``longest``."""
    drawn = [
        series(label, style, range(1, len(m[key]) + 1), m[key]) for style, (label, m) in enumerate(lines)
    ]
    places = Axis("position k in the block", [float(k) for k in range(1, longest + 1)])
    return plot(title, drawn, places, shares(formula))


def columns(first: str, longest: int) -> list[str]:
    """Headings of a table by position."""
    return [first, *(f"k = {k}" for k in range(1, longest + 1))]


def figures(path: str, key: str, metrics: dict[str, Any], longest: int, evaluation: str = "") -> list[Cell]:
    """A cell for each position; a dash where the block is shorter."""
    found = [
        told(f"{path}/{key}/{k}", figure, evaluation=evaluation) for k, figure in enumerate(metrics[key])
    ]
    return found + [words(None)] * (longest - len(found))
