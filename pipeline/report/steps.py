"""The section on SPS(B): steps a second of the target by the tokens of a verification pass (evaluate.profile=true)."""

from __future__ import annotations

from typing import Any

from pipeline.report.evaluation import Evaluation
from pipeline.report.model import Cell, Drawing, Drawings, Note, Section, Table, plain, words
from pipeline.report.svg import PlottedPoint, Series, linear, plot, powers, swatch

TITLE = "Steps a second by tokens, SPS(B)"
DRAWN = "Steps a second by tokens of a verification pass"


def steps(evaluation: Evaluation) -> Section:
    """The measured curve, a line a context, and milliseconds by tokens."""
    found = evaluation.summary.get("profile")
    if not found:
        text = "Not measured. evaluate.profile=true measures what a verification pass of B tokens costs here."
        return Section("profile", TITLE, [Note(text, absent=True)])
    machine = found["machine"]
    note = Note(
        f"Measured on {machine['device']}, {machine['cores']} cores, {machine['threads']} threads, {machine['dtype']}: "
        f"medians of {found['repeats']} repeats with 95 % of them. Each request of a step has the same context and "
        f"verifies at most {found['block'] + 1} tokens."
    )
    drawn = [_series(style, curve) for style, curve in enumerate(found["contexts"])]
    points = [point for one in drawn for point in one.points]
    counts = [p["tokens"] for p in found["contexts"][0]["points"]]
    x = powers("tokens of a verification pass", [n for n in counts if n & (n - 1) == 0] + counts[-1:])
    y = linear("steps a second", [end for p in points for end in (p.y, p.low or p.y, p.high or p.y)])
    legend = [(swatch(one.style), one.label) for one in drawn]
    chart = Drawings([Drawing(DRAWN, plot(DRAWN, drawn, x, y))], legend)
    return Section("profile", TITLE, [note, chart, _table(found)])


def _series(style: int, curve: dict[str, Any]) -> Series:
    label = f"context {curve['context']}"
    points = []
    for p in curve["points"]:
        (low, high), rate = p["interval"], 1 / p["seconds"]
        told = f"{label}, {p['tokens']} tokens: {rate:.1f} steps a second"
        points.append(PlottedPoint(p["tokens"], rate, 1 / high, 1 / low, told))
    return Series(label, style, points)


def _table(found: dict[str, Any]) -> Table:
    contexts = found["contexts"]
    columns = ("tokens", *(f"ms, context {curve['context']}" for curve in contexts))
    rows = []
    for place, point in enumerate(contexts[0]["points"]):
        cells = [_cell(f"profile/contexts/{c}/points/{place}", curve) for c, curve in enumerate(contexts)]
        rows.append([words(point["tokens"]), *cells])
    return Table("Milliseconds of a verification pass", columns, rows, folded=True)


def _cell(path: str, curve: dict[str, Any]) -> Cell:
    """A median in milliseconds; the data hold the seconds of the JSON."""
    point = curve["points"][int(path.rsplit("/", 1)[1])]
    low, high = point["interval"]
    data = plain(f"{path}/seconds", point["seconds"]).data
    return Cell(f"{1000 * point['seconds']:.1f}", f"[{1000 * low:.1f}, {1000 * high:.1f}]", data)
