"""The run's record: one JSON object per line, of kind ``train`` (every step) or ``heldout`` (every evaluation).

Plots, the tracker and the choice of the best draft use it. A resumed run drops the lines of steps after its checkpoint,
so that the steps are always in order (pitfall 37).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_specs.files import written_whole
from stages.train.step_sums import GREEDY, SCORE


class Record:
    """The lines in memory and on disk. Without ``writer`` (on ranks other than 0) the file is not written.

    ``check`` is called before each write and prevents it by raising an error.
    """

    def __init__(self, path: Path, writer: bool = True, check: Callable[[], None] = lambda: None) -> None:
        self.path, self.writer, self.check = path, writer, check
        self.lines = read_lines(path)

    def rewind(self, step: int) -> None:
        """Drop the lines of steps after ``step``."""
        self.lines = [line for line in self.lines if line["step"] <= step]
        if self.writer:
            self.check()
            with written_whole(self.path) as temporary:
                temporary.write_text("".join(json.dumps(line) + "\n" for line in self.lines))

    def append(self, line: dict[str, Any]) -> None:
        """Add a line. It is in the file, but perhaps not yet on the disk, when this returns."""
        if self.writer:
            self.check()
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        self.lines.append(line)

    def last(self, kind: str) -> dict[str, Any] | None:
        """The latest line of ``kind``."""
        return next((line for line in reversed(self.lines) if line["kind"] == kind), None)

    def best(self, until: int | None = None) -> dict[str, Any] | None:
        """The held-out line with the greatest accepted length up to step ``until``; of equal ones, the earliest."""
        lines = [x for x in self.lines if x["kind"] == "heldout" and (until is None or x["step"] <= until)]
        return max(lines, key=lambda line: (line[SCORE], -line["step"]), default=None)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of the record at ``path`` (none if it is absent), without a last line that a kill has cut off."""
    if not path.is_file():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.split("\n") if line]


def plot(lines: list[dict[str, Any]], path: Path) -> None:
    """Draw loss and accepted length over the steps into the PNG at ``path``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    losses, lengths = figure.subplots(1, 2)
    styles: dict[str, dict[str, Any]] = {
        "train": {"alpha": 0.6, "linewidth": 1},
        "heldout": {"marker": "o", "markersize": 3},
    }
    for kind, style in styles.items():
        chosen = [line for line in lines if line["kind"] == kind]
        steps = [line["step"] for line in chosen]
        losses.plot(steps, [line["loss"] for line in chosen], label=kind, **style)
        if known := [(line["step"], line[SCORE]) for line in chosen if SCORE in line]:
            lengths.plot(*zip(*known, strict=True), label=f"{kind}, temperature 1", **style)
        if kind == "heldout":
            lengths.plot(steps, [line[GREEDY] for line in chosen], label="heldout, greedy", **style)
    for axes, title in ((losses, "loss"), (lengths, "expected accepted length (bonus counted)")):
        axes.set(xlabel="step", title=title)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)
