"""Charts as inline SVG: text stays text; colours are classes of style.css, so that one drawing serves dark and light.

A chart is drawn 360 units wide, about the width of a phone: its text is as large there as the page's. Every point says
its value when it is pointed at (``<title>``).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from markupsafe import Markup

WIDTH, HEIGHT = 360, 240
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 40  # margins
COLOURS, SHAPES = 6, 4  # classes c0 ... c5 of style.css; circle, square, diamond, triangle
ROW = 36  # height of a row of bars with its name
LABEL, LINE = 19, 15  # heights of a name, and of an interval below it

Scale = Callable[[float], float]  # a value -> its place in the drawing


@dataclass(frozen=True)
class Axis:
    """From the first tick to the last. ``form`` writes a tick; ``log`` places powers at equal distances."""

    label: str
    ticks: Sequence[float]
    form: str = "{:g}"
    log: bool = False

    def text(self, tick: float) -> str:
        """A tick as it is written: thousands as ``20k`` where the axis has many."""
        return f"{tick / 1000:g}k" if tick and self.ticks[-1] >= 10_000 else self.form.format(tick)

    def share(self, value: float) -> float:
        """Where ``value`` lies between the axis' ends, 0 to 1."""
        low, high, value = (math.log(v) if self.log else v for v in (self.ticks[0], self.ticks[-1], value))
        return (value - low) / (high - low) if high > low else 0.5


@dataclass(frozen=True)
class PlottedPoint:
    """A value at ``x`` with its interval, and what is said when it is pointed at."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    text: str = ""
    size: float = 3.2


@dataclass(frozen=True)
class Series:
    """Points of one colour and shape, joined by a line unless they are ``loose``."""

    label: str
    style: int
    points: Sequence[PlottedPoint]
    loose: bool = False


def linear(label: str, values: Iterable[float], form: str = "{:g}", least: float | None = 0.0) -> Axis:
    """An axis with round ticks around ``values`` and, unless it is None, ``least``."""
    from matplotlib.ticker import MaxNLocator

    known = [v for v in values if math.isfinite(v)] + ([] if least is None else [least])
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    found = MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high if high > low else low + 1)
    ticks = [float(round(tick, 10)) for tick in found]
    return Axis(label, ticks, form)


def powers(label: str, values: Sequence[float]) -> Axis:
    """A logarithmic axis whose ticks are ``values`` themselves, at most eight of them."""
    ticks = sorted(set(values))
    kept = ticks[:: -math.ceil(len(ticks) / 7)][::-1]
    return Axis(label, kept if kept[0] == ticks[0] else [ticks[0], *kept], log=True)


def shares(label: str) -> Axis:
    """0 to 1."""
    return Axis(label, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), "{:.1f}")


def series(label: str, style: int, places: Sequence[float], figures: Sequence[dict[str, Any]]) -> Series:
    """``figures`` (value and interval) at ``places``; what has no value is left out."""
    points = []
    for place, figure in zip(places, figures, strict=True):
        if (value := figure["value"]) is not None:
            low, high = figure["interval"] or (None, None)
            told = f"{value:.3f}" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")
            points.append(PlottedPoint(place, value, low, high, f"{label}, {place:g}: {told}"))
    return Series(label, style, points)


def plot(
    title: str,
    drawn: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    diagonal: bool = False,
) -> Markup:
    """Lines with shaded intervals, and points, over two axes."""
    width, height = size
    left, right, top, bottom = min(LEFT, width // 4), width - RIGHT, TOP, height - BOTTOM

    def across(value: float) -> float:
        return left + (right - left) * x.share(value)

    def up(value: float) -> float:
        return bottom - (bottom - top) * y.share(value)

    parts = [_vertical_grid(y, left, right, up), _horizontal_ticks(x, bottom, across)]
    parts.append(f'<path class="axis" d="M{left} {bottom}H{right}"/>')
    parts.append(_text((left + right) / 2, height - 4, x.label, "middle label"))
    parts.append(_text(0, 0, y.label, "middle label", f"translate(11 {(top + bottom) / 2:.0f}) rotate(-90)"))
    if diagonal:
        parts.append(f'<path class="guide" d="M{left} {bottom}L{right} {top}"/>')
    for one in drawn:
        parts.append(_band(one, across, up))
    for one in drawn:
        parts.append(_line(one, across, up) + _marks(one, across, up))
    said = "; ".join(f"{s.label}: " + ", ".join(f"{p.x:g} {p.y:.3g}" for p in s.points) for s in drawn)
    return _svg(title, f"{y.label} over {x.label}. {said}", "".join(parts), width, height)


def intervals(
    title: str,
    groups: Sequence[tuple[str, Sequence[dict[str, Any]]]],
    labels: Sequence[str],
    x: Axis,
    at: float,
) -> Markup:
    """A group of (name, a figure for each of ``labels``): values with intervals; a guide stands ``at`` one value.

    Where there is one label the values are written beside the names.
    """
    high = LABEL + LINE * len(labels)  # of a group
    bottom = TOP + high * len(groups)

    def across(value: float) -> float:
        return 12 + (WIDTH - 36) * x.share(value)

    drawn, said = [], []
    for number, (name, figures) in enumerate(groups):
        top = TOP + high * number
        drawn.append(_text(12, top + 12, name, "name"))
        if len(labels) == 1:
            drawn.append(_text(WIDTH - 12, top + 12, _figure(figures[0]), "end name"))
        for style, (label, figure) in enumerate(zip(labels, figures, strict=True)):
            text = f"{', '.join(filter(None, (name, label)))}: {_figure(figure)}"
            drawn.append(_whisker(figure, style, top + LABEL + LINE * (style + 0.4), text, across))
            said.append(text)
    parts = [_horizontal_ticks(x, bottom, across), f'<path class="axis" d="M8 {bottom}H{WIDTH - 8}"/>']
    parts.append(_text(WIDTH / 2, bottom + 36, x.label, "middle label"))
    parts.append(f'<path class="guide" d="M{across(at):.1f} {TOP}V{bottom}"/>')
    return _svg(title, f"{x.label}. {'; '.join(said)}", "".join(parts + drawn), WIDTH, bottom + BOTTOM)


def stacks(title: str, rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], unit: str) -> Markup:
    """A row of bars end to end for each (name, [(part, size)]); all rows to one scale."""
    longest = max((sum(size for _, size in parts) for _, parts in rows), default=0.0) or 1.0
    drawn, said = [], []
    for number, (name, parts) in enumerate(rows):
        top, start = TOP + ROW * number, 12.0
        total = sum(size for _, size in parts)
        drawn.append(_text(12, top + 10, name, "name"))
        drawn.append(_text(WIDTH - 12, top + 10, f"{total:.1f} {unit}", "end name"))
        for style, (part, size) in enumerate(parts):
            length = (WIDTH - 24) * size / longest
            text = f"{name}, {part}: {size:.1f} {unit}"
            drawn.append(
                f'<rect class="bar c{style % COLOURS}" x="{start:.1f}" y="{top + 15}" width="{length:.1f}" height="13">'
                f"<title>{escape(text)}</title></rect>"
            )
            said.append(text)
            start += length
    return _svg(title, "; ".join(said), "".join(drawn), WIDTH, TOP + ROW * len(rows))


def swatch(style: int) -> Markup:
    """The sign of a series in a legend."""
    line = f'<path class="line c{style % COLOURS}" d="M0 6H22"/>'
    mark = _mark(style, 11, 6, 3.6, "")
    return Markup(f'<svg class="swatch" viewBox="0 0 22 12" aria-hidden="true">{line}{mark}</svg>')


# --- parts ------------------------------------------------------------------------------------------------


def _svg(title: str, description: str, inner: str, width: float, height: float) -> Markup:
    """The frame, with a name and a description for those who do not see it."""
    name = hashlib.sha256(f"{title}{description}{inner}".encode()).hexdigest()[:10]
    head = f'<title id="t{name}">{escape(title)}</title><desc id="d{name}">{escape(description)}</desc>'
    attributes = (
        f'viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="t{name}" aria-describedby="d{name}"'
    )
    return Markup(f'<svg class="chart" {attributes}>{head}{inner}</svg>')


def _text(x: float, y: float, text: str, classes: str, transform: str = "") -> str:
    moved = f' transform="{transform}"' if transform else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{classes}"{moved}>{escape(text)}</text>'


def _vertical_grid(y: Axis, left: float, right: float, up: Scale) -> str:
    return "".join(
        f'<path class="grid" d="M{left} {up(tick):.1f}H{right}"/>'
        + _text(left - 6, up(tick) + 4, y.text(tick), "end")
        for tick in y.ticks
    )


def _horizontal_ticks(x: Axis, bottom: float, across: Scale) -> str:
    return "".join(_text(across(t), bottom + 15, x.text(t), "middle") for t in x.ticks)


def _band(one: Series, across: Scale, up: Scale) -> str:
    """The intervals of neighbouring points as one area."""
    ranged = [(p.x, p.low, p.high) for p in one.points if p.low is not None and p.high is not None]
    if len(ranged) < 2 or one.loose:
        return ""
    there = " ".join(f"{across(x):.1f},{up(high):.1f}" for x, _, high in ranged)
    back = " ".join(f"{across(x):.1f},{up(low):.1f}" for x, low, _ in reversed(ranged))
    return f'<polygon class="band c{one.style % COLOURS}" points="{there} {back}"/>'


def _whisker(figure: dict[str, Any], style: int, y: float, text: str, across: Scale) -> str:
    """A value with its interval on a horizontal line; nothing where there is no value."""
    if figure["value"] is None:
        return ""
    low, high = figure["interval"] or (figure["value"], figure["value"])
    path = f'<path class="whisker c{style % COLOURS}" d="M{across(low):.1f} {y:.1f}H{across(high):.1f}"/>'
    return path + _mark(style, across(figure["value"]), y, 4.2, text)


def _line(one: Series, across: Scale, up: Scale) -> str:
    if one.loose or len(one.points) < 2:
        return ""
    points = " ".join(f"{across(p.x):.1f},{up(p.y):.1f}" for p in one.points)
    return f'<polyline class="line c{one.style % COLOURS}" points="{points}"/>'


def _marks(one: Series, across: Scale, up: Scale) -> str:
    return "".join(_mark(one.style, across(p.x), up(p.y), p.size, p.text) for p in one.points)


def _mark(style: int, x: float, y: float, size: float, text: str) -> str:
    """A sign whose shape tells series apart without colour."""
    r, s = size, 1.25 * size
    outline = (
        f"M{x - r:.1f} {y:.1f}a{r:.1f} {r:.1f} 0 1 0 {2 * r:.1f} 0a{r:.1f} {r:.1f} 0 1 0 {-2 * r:.1f} 0z",
        f"M{x - r:.1f} {y - r:.1f}h{2 * r:.1f}v{2 * r:.1f}h{-2 * r:.1f}z",
        f"M{x:.1f} {y - s:.1f}l{s:.1f} {s:.1f}l{-s:.1f} {s:.1f}l{-s:.1f} {-s:.1f}z",
        f"M{x:.1f} {y - s:.1f}l{s:.1f} {2 * s:.1f}h{-2 * s:.1f}z",
    )[style % SHAPES]
    title = f"<title>{escape(text)}</title>" if text else ""
    return f'<path class="mark c{style % COLOURS}" d="{outline}">{title}</path>'


def _figure(figure: dict[str, Any]) -> str:
    if figure["value"] is None:
        return "unknown"
    if figure["interval"] is None:
        return f"{figure['value']:.2f}"
    low, high = figure["interval"]
    return f"{figure['value']:.2f} [{low:.2f}, {high:.2f}]"
