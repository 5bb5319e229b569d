"""What reports share: figures with intervals as text, Markdown tables, plots without a display.

A figure is what ``pipeline.acceptance.summary`` makes: ``{"value": 2.1, "interval": [1.9, 2.3]}``, either of them
None where it cannot be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

MACRO = "macro average"


def number(figure: dict[str, Any], form: str) -> str:
    """The figure's value in the format ``form``, or a dash where there is none."""
    return "-" if figure["value"] is None else form.format(figure["value"])


def with_interval(figure: dict[str, Any]) -> str:
    """``2.13 [1.98, 2.27]``, or without the brackets where there is no interval."""
    text = number(figure, "{:.2f}")
    if figure["value"] is None or figure["interval"] is None:
        return text
    low, high = figure["interval"]
    return f"{text} [{low:.2f}, {high:.2f}]"


def share(figure: dict[str, Any]) -> str:
    """``61 %``, or a dash where there is no value."""
    return number(figure, "{:.0%}").replace("%", " %")


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown: the first column to the left, the others to the right."""
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def axes(count: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """A matplotlib figure of ``size`` inches with ``count`` axes side by side, and those."""
    from matplotlib.figure import Figure  # no pyplot: no display, no global state

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False)[0]


def line(axis: Any, places: Sequence[float], figures: Sequence[dict[str, Any]], label: str) -> None:
    """Draw ``figures`` at ``places`` as a line, their intervals shaded; what has no value is left out."""
    known = [(place, f) for place, f in zip(places, figures, strict=True) if f["value"] is not None]
    (drawn,) = axis.plot([p for p, _ in known], [f["value"] for _, f in known], marker="o", label=label)
    ranged = [(place, *f["interval"]) for place, f in known if f["interval"] is not None]
    if ranged:
        axis.fill_between(*zip(*ranged, strict=True), color=drawn.get_color(), alpha=0.15)


def save(figure: Any, path: Path) -> None:
    """Write a matplotlib figure as PNG, without the version of what drew it."""
    figure.savefig(path, dpi=120, metadata={"Software": None})
