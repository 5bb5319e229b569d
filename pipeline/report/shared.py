"""Plots of the reports that are not made of model objects yet (stages/study, stages/compare)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


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
