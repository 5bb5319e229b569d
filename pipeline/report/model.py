"""What a report is made of: sections of tables, drawings and notes, free of markup. Each is defined once, and four
writers give it a form: page.py (HTML), markdown.py, screen.py (the last screen) and plot.py (drawings as SVG and PNG).

A section is written like this::

    METRICS = (Metric("accepted length", "accepted_length", interval=True), Metric("draft ms", "draft_ms", "{:.1f}"))

    def lengths(one: Evaluation) -> Section:
        rows = [[words(name), *cells(path, metrics, METRICS)] for name, path, metrics in one.rows]
        table = Table("Lengths by benchmark", ("benchmark", *titles(METRICS)), rows, where=EVERYWHERE)
        figures = [(name, [m.accepted_length]) for name, m in one.named.items()]
        chart = Whiskers("Accepted length", figures, [""], Axis("tokens a round", least=1.0), at=1.0)
        return Section("lengths", "Lengths", [table, Drawings([chart], file="lengths.png")])

A *figure* is a value with its interval (data_specs/results/summary.py), either None where it cannot be told. A cell
that shows a number carries it unrounded, with the path at which the JSON holds it, so that a test (or a spreadsheet)
can read the page exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from data_specs.results.summary import Figure

DASH = "–"
MACRO = "macro average"
PAGE, MARKDOWN, SCREEN = "page", "markdown", "screen"  # the writers that show a block
FILED, TEXT, EVERYWHERE = (PAGE, MARKDOWN), (MARKDOWN, SCREEN), (PAGE, MARKDOWN, SCREEN)


@dataclass(frozen=True)
class Cell:
    """One cell: ``text``, an ``aside`` in smaller print (an interval), and the exact data as HTML attributes.

    ``brief`` is what Markdown and the screen show instead of the text and the aside; empty: the text alone.
    """

    text: str
    aside: str = ""
    data: dict[str, str] = field(default_factory=dict)
    brief: str = ""

    @property
    def plain(self) -> str:
        """The cell in Markdown and on the screen, before anything is escaped."""
        return (self.brief or self.text).replace(DASH, "-")


@dataclass(frozen=True)
class Table:
    """``columns[0]`` heads the rows' names. ``rows[i][0]`` is the row's name, ``strong`` the rows that sum up."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    strong: frozenset[int] = frozenset()
    names: int = 1  # leading columns that are names rather than numbers
    folded: bool = False  # shown on a click: detail behind a drawing
    kind: str = ""  # of style.css: words (aligned to the left), facts (long texts, which are wrapped)
    where: Sequence[str] = FILED
    parts: Sequence[Sequence[str]] = ()  # columns of the tables that a narrow screen shows instead
    text_only: Sequence[str] = ()  # columns that the page leaves out, because a drawing shows them

    @property
    def on_page(self) -> Table:
        """The table as the page shows it."""
        kept = [n for n, column in enumerate(self.columns) if column not in self.text_only]
        columns = [self.columns[n] for n in kept]
        return replace(self, columns=columns, rows=[[row[n] for n in kept] for row in self.rows])


@dataclass(frozen=True)
class Axis:
    """``ticks`` also are the ends of the axis; None: round ones around the values and, if not None, ``least``."""

    label: str
    ticks: Sequence[float] | None = None
    log: bool = False
    least: float | None = 0.0


@dataclass(frozen=True)
class PlottedPoint:
    """A value at ``x`` with its interval, and what is said when it is pointed at. ``size``: radius of its sign."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    text: str = ""
    size: float = 3.2


@dataclass(frozen=True)
class Series:
    """Points of one colour and shape (``style``), joined by a line unless they are ``loose``."""

    label: str
    style: int
    points: Sequence[PlottedPoint]
    loose: bool = False


@dataclass(frozen=True)
class Lines:
    """Lines with shaded intervals, and points, over two axes.

    ``diagonal``: with a line where both are equal. ``guides``: vertical lines at these places.
    """

    title: str
    series: Sequence[Series]
    x: Axis
    y: Axis
    diagonal: bool = False
    small: bool = False
    guides: Sequence[float] = ()


@dataclass(frozen=True)
class Whiskers:
    """Groups of (name, a figure for each of ``labels``): values with intervals; a guide stands ``at`` one value."""

    title: str
    groups: Sequence[tuple[str, Sequence[Figure]]]
    labels: Sequence[str]
    x: Axis
    at: float


@dataclass(frozen=True)
class Bars:
    """A row of bars end to end for each (name, [(part, size)]); all rows to one scale."""

    title: str
    rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]
    unit: str


Drawing = Lines | Whiskers | Bars


@dataclass(frozen=True)
class Drawings:
    """Drawings side by side that share a legend of (style, label). ``file``: PNG of them all, beside the report."""

    charts: Sequence[Drawing]
    legend: Sequence[tuple[int, str]] = ()
    layout: str = ""  # of style.css: small (many in a row), pairs (two in a row)
    file: str = ""
    where: Sequence[str] = FILED


@dataclass(frozen=True)
class Note:
    """A paragraph. ``absent``: it says how to get what is not there; ``warns``: something is not as expected."""

    text: str
    absent: bool = False
    warns: bool = False
    where: Sequence[str] = FILED


@dataclass(frozen=True)
class Heading:
    """A part of a section begins."""

    text: str
    where: Sequence[str] = FILED


Block = Table | Drawings | Note | Heading


@dataclass(frozen=True)
class Section:
    """One heading and what stands below it."""

    anchor: str
    title: str
    blocks: Sequence[Block]

    def shown(self, writer: str) -> list[Block]:
        """The blocks that ``writer`` shows; how to get what is not there is said on the page alone."""
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
    """A column of figures: heading, key in the JSON, format on the page, and ``brief``, in Markdown and on the screen.

    ``interval``: these show the interval too.
    """

    title: str
    key: str
    form: str = "{:.2f}"
    brief: str = ""
    interval: bool = False


# --- cells ------------------------------------------------------------------------------------------------


def titles(metrics: Sequence[Metric]) -> list[str]:
    """Column headings of ``metrics``."""
    return [metric.title for metric in metrics]


def cells(path: str, found: object, metrics: Sequence[Metric], evaluation: str = "") -> list[Cell]:
    """A cell for each of ``metrics`` of ``found``, a record that the JSON has at ``path``: of a figure, a number, or a
    list of figures, which is one cell.
    """
    return [
        _cell(f"{path}/{metric.key}", getattr(found, metric.key), metric, evaluation) for metric in metrics
    ]


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
    """A figure with its interval beside it. ``key`` is its path in the JSON."""
    if figure.value is None:
        return Cell(DASH, data=_data(key, None, evaluation))
    data, aside = _data(key, figure.value, evaluation), ""
    if figure.interval is not None:
        low, high = figure.interval
        aside = _interval(figure, form)
        data |= {"low": json.dumps(low), "high": json.dumps(high)}
    return Cell(number(figure, form), aside, data, brief)


def plain(key: str, value: float | int | bool | None, form: str = "{:,}", evaluation: str = "") -> Cell:
    """A number without an interval; None is a dash, a truth value a word."""
    data = _data(key, value, evaluation)
    if isinstance(value, bool):
        return Cell("yes" if value else "no", data=data)
    return Cell(DASH if value is None else _form(form, value), data=data)


def number(figure: Figure, form: str) -> str:
    """The figure's value in the format ``form``, or a dash where there is none."""
    return "-" if figure.value is None else _form(form, figure.value)


def with_interval(figure: Figure, form: str = "{:.2f}") -> str:
    """``2.13 [1.98, 2.27]``, or without the brackets where there is no interval."""
    return " ".join(filter(None, (number(figure, form), _interval(figure, form))))


def moment(created: str | None) -> str | None:
    """``2026-11-30T03:19:49+00:00`` (UTC, as manifests have it) as ``2026-11-30 03:19 UTC``."""
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
    """A logarithmic axis whose ticks are ``values`` themselves, at most eight of them."""
    ticks = sorted(set(values))
    kept = ticks[:: -math.ceil(len(ticks) / 7)][::-1]
    return Axis(label, kept if kept[0] == ticks[0] else [ticks[0], *kept], log=True)


def shares(label: str) -> Axis:
    """An axis from 0 to 1."""
    return Axis(label, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))


def series(label: str, style: int, places: Sequence[float], figures: Sequence[Figure]) -> Series:
    """``figures`` (value and interval) at ``places``; what has no value is left out."""
    points = []
    for place, figure in zip(places, figures, strict=True):
        if (value := figure.value) is not None:
            low, high = figure.interval or (None, None)
            text = f"{label}, {place:g}: {with_interval(figure, '{:.3f}')}"
            points.append(PlottedPoint(place, value, low, high, text))
    return Series(label, style, points)
