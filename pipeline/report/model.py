"""The parts of a report: sections of tables, drawings and notes, without markup. Each is defined once, and four modules
write it: page.py (HTML), markdown.py, screen.py (the last screen) and plot.py (drawings as SVG and PNG).

A section is written like this::

    METRICS = (Metric("accepted length", "accepted_length", interval=True), Metric("draft ms", "draft_ms", "{:.1f}"))

    def lengths(one: Evaluation) -> Section:
        rows = [[words(name), *cells(path, metrics, METRICS)] for name, path, metrics in one.rows]
        table = Table("Lengths by benchmark", ("benchmark", *titles(METRICS)), rows, where=EVERYWHERE)
        figures = [(name, [m.accepted_length]) for name, m in one.named.items()]
        chart = Whiskers("Accepted length", figures, [""], Axis("tokens a round", least=1.0), at=1.0)
        return Section("lengths", "Lengths", [table, Drawings([chart], file="lengths.png")])

A *figure* is a value with its interval (data_specs/results/summary.py); both are None if unknown. A cell that shows a
number also carries the unrounded number and its path in the JSON, so that tests and spreadsheets can read the page.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from data_specs.results.summary import Figure

DASH = "–"
MACRO = "macro average"
PAGE, MARKDOWN, SCREEN = "page", "markdown", "screen"  # the writers that show a block
FILED, TEXT, EVERYWHERE = (PAGE, MARKDOWN), (MARKDOWN, SCREEN), (PAGE, MARKDOWN, SCREEN)


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    aside: str = ""  # in smaller print on the page (an interval)
    data: dict[str, str] = field(default_factory=dict)  # the exact data, as HTML attributes
    brief: str = ""  # in Markdown and on the screen, instead of the text

    @property
    def plain(self) -> str:
        """The text in Markdown and on the screen, before it is escaped."""
        return (self.brief or self.text).replace(DASH, "-")


@dataclass(frozen=True)
class Table:
    """A table; its first column names the rows."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    strong: frozenset[int] = frozenset()  # numbers of the rows that sum up others
    names: int = 1  # leading columns that are names rather than numbers
    folded: bool = False  # the page shows it after a click only
    kind: str = ""  # of style.css: words (aligned to the left), facts (long texts, which are wrapped)
    where: Sequence[str] = FILED
    parts: Sequence[Sequence[str]] = ()  # columns of the tables that a narrow screen shows instead
    text_only: Sequence[str] = ()  # columns that the page leaves out, because a drawing shows them

    @property
    def on_page(self) -> Table:
        """The table without the columns that the page leaves out."""
        kept = [n for n, column in enumerate(self.columns) if column not in self.text_only]
        columns = [self.columns[n] for n in kept]
        return replace(self, columns=columns, rows=[[row[n] for n in kept] for row in self.rows])


@dataclass(frozen=True)
class Axis:
    """An axis from its first to its last tick."""

    label: str
    ticks: Sequence[float] | None = None  # None: round numbers around the values and ``least``
    log: bool = False
    least: float | None = 0.0


@dataclass(frozen=True)
class PlottedPoint:
    """A point with its interval."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    text: str = ""  # shown when the point is hovered
    size: float = 3.2  # radius of its sign


@dataclass(frozen=True)
class Series:
    """Points with the same colour and sign (``style``), joined by a line unless they are ``loose``."""

    label: str
    style: int
    points: Sequence[PlottedPoint]
    loose: bool = False


@dataclass(frozen=True)
class Lines:
    """Lines with shaded intervals, and points, over two axes."""

    title: str
    series: Sequence[Series]
    x: Axis
    y: Axis
    diagonal: bool = False  # with the line x = y
    small: bool = False
    guides: Sequence[float] = ()  # places of vertical lines


@dataclass(frozen=True)
class Whiskers:
    """Values with intervals: for each group (name, figures), one figure per label."""

    title: str
    groups: Sequence[tuple[str, Sequence[Figure]]]
    labels: Sequence[str]
    x: Axis
    at: float  # place of a vertical line


@dataclass(frozen=True)
class Bars:
    """One row of bars end to end per (name, [(part, size)]); all rows have the same scale."""

    title: str
    rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]
    unit: str


Drawing = Lines | Whiskers | Bars


@dataclass(frozen=True)
class Drawings:
    """Drawings side by side that share a legend."""

    charts: Sequence[Drawing]
    legend: Sequence[tuple[int, str]] = ()  # style and label
    layout: str = ""  # of style.css: small (many in a row), pairs (two in a row)
    file: str = ""  # name of the PNG of all drawings, beside the report
    where: Sequence[str] = FILED


@dataclass(frozen=True)
class Note:
    """A paragraph."""

    text: str
    absent: bool = False  # it says how to get figures that are missing
    warns: bool = False  # something is not as expected
    where: Sequence[str] = FILED


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: str
    where: Sequence[str] = FILED


Block = Table | Drawings | Note | Heading


@dataclass(frozen=True)
class Section:
    """One heading and the blocks below it."""

    anchor: str
    title: str
    blocks: Sequence[Block]

    def shown(self, writer: str) -> list[Block]:
        """The blocks that ``writer`` shows; only the page shows ``absent`` notes."""
        found = [block for block in self.blocks if writer in block.where]
        return [b for b in found if writer == PAGE or not (isinstance(b, Note) and b.absent)]


@dataclass(frozen=True)
class Page:
    """A title, one line below it, a few large numbers, and sections."""

    title: str
    subtitle: str
    headlines: Sequence[tuple[str, Cell]]
    sections: Sequence[Section]


@dataclass(frozen=True)
class Metric:
    """A column of figures."""

    title: str
    key: str  # in the JSON
    form: str = "{:.2f}"  # format on the page
    brief: str = ""  # format in Markdown and on the screen
    interval: bool = False  # whether Markdown and the screen also show the interval


# --- cells ------------------------------------------------------------------------------------------------


def titles(metrics: Sequence[Metric]) -> list[str]:
    """Column headings of ``metrics``."""
    return [metric.title for metric in metrics]


def cells(path: str, found: object, metrics: Sequence[Metric], evaluation: str = "") -> list[Cell]:
    """One cell for each of ``metrics`` of the record ``found``, which the JSON holds at ``path``.

    A metric is a figure, a number, or a list of figures.
    """
    return [_cell(f"{path}/{one.key}", getattr(found, one.key), one, evaluation) for one in metrics]


def _cell(key: str, found: Any, metric: Metric, evaluation: str) -> Cell:
    if isinstance(found, list):
        return Cell(" ".join(number(figure, metric.form).lstrip("0") for figure in found) or DASH)
    if not isinstance(found, Figure):
        return plain(key, found, metric.form, evaluation)
    write = with_interval if metric.interval else number
    return told(key, found, metric.form, evaluation, write(found, metric.brief or metric.form))


def words(text: object) -> Cell:
    """A cell of text; None is a dash."""
    return Cell(DASH if text is None else str(text))


def told(key: str, figure: Figure, form: str = "{:.2f}", evaluation: str = "", brief: str = "") -> Cell:
    """A figure with its interval beside it; ``key`` is its path in the JSON."""
    data = _data(key, figure.value, evaluation)
    if figure.value is None:
        return Cell(DASH, data=data)
    if figure.interval is not None:
        low, high = figure.interval
        data |= {"low": json.dumps(low), "high": json.dumps(high)}
    return Cell(number(figure, form), _interval(figure, form), data, brief)


def plain(key: str, value: float | int | bool | None, form: str = "{:,}", evaluation: str = "") -> Cell:
    """A number without an interval; None is a dash, and a truth value is yes or no."""
    data = _data(key, value, evaluation)
    if isinstance(value, bool):
        return Cell("yes" if value else "no", data=data)
    return Cell(DASH if value is None else _form(form, value), data=data)


def number(figure: Figure, form: str) -> str:
    """The figure's value in the format ``form``, or a dash without a value."""
    return "-" if figure.value is None else _form(form, figure.value)


def with_interval(figure: Figure, form: str = "{:.2f}") -> str:
    """A text such as ``2.13 [1.98, 2.27]``, or ``2.13`` without an interval."""
    return " ".join(filter(None, (number(figure, form), _interval(figure, form))))


def listed(values: Mapping[str, Any]) -> str:
    """``name value, name value`` for all ``values`` that are not None."""
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def moment(created: str | None) -> str | None:
    """A time of a manifest (``2026-11-30T03:19:49+00:00``) as ``2026-11-30 03:19 UTC``."""
    return created and f"{created[:16].replace('T', ' ')} UTC"


def _form(form: str, value: float) -> str:
    return form.format(value).replace("%", " %")


def _interval(figure: Figure, form: str) -> str:
    if figure.value is None or figure.interval is None:
        return ""
    low, high = (form.format(end) for end in figure.interval)
    return f"[{low}, {high}]".replace("%", "").replace("×", "")


def _data(key: str, value: Any, evaluation: str) -> dict[str, str]:
    found = {"key": key, "value": json.dumps(value)}
    return found | ({"evaluation": evaluation} if evaluation else {})


# --- axes and series --------------------------------------------------------------------------------------


def powers(label: str, values: Sequence[float]) -> Axis:
    """A logarithmic axis whose ticks are at most eight of ``values``."""
    ticks = sorted(set(values))
    kept = ticks[:: -math.ceil(len(ticks) / 7)][::-1]
    return Axis(label, kept if kept[0] == ticks[0] else [ticks[0], *kept], log=True)


def shares(label: str) -> Axis:
    """An axis from 0 to 1."""
    return Axis(label, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))


def series(label: str, style: int, places: Sequence[float], figures: Sequence[Figure]) -> Series:
    """``figures`` at ``places``; figures without a value are left out."""
    points = []
    for place, figure in zip(places, figures, strict=True):
        if (value := figure.value) is not None:
            low, high = figure.interval or (None, None)
            text = f"{label}, {place:g}: {with_interval(figure, '{:.3f}')}"
            points.append(PlottedPoint(place, value, low, high, text))
    return Series(label, style, points)
