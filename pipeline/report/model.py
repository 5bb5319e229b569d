"""What a page is made of: sections of tables, figures and notes, free of markup.

A *figure* is what ``pipeline.acceptance.summary`` makes: ``{"value": 2.1, "interval": [1.9, 2.3]}``, either None where
it cannot be told. A cell that shows a number carries it unrounded, with the path at which the JSON holds it, so that a
test (or a spreadsheet) can read the page exactly.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from pipeline.report.shared import number

DASH = "–"


@dataclass(frozen=True)
class Cell:
    """One cell: ``text``, an ``aside`` in smaller print (an interval), and the exact data as HTML attributes."""

    text: str
    aside: str = ""
    data: dict[str, str] = field(default_factory=dict)


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


@dataclass(frozen=True)
class Drawing:
    """One chart with the heading above it."""

    title: str
    svg: Markup


@dataclass(frozen=True)
class Drawings:
    """Charts side by side that share a legend of (swatch, label)."""

    charts: Sequence[Drawing]
    legend: Sequence[tuple[Markup, str]] = ()
    layout: str = ""  # of style.css: small (many in a row), pairs (two in a row)


@dataclass(frozen=True)
class Note:
    """A paragraph. ``absent``: it says how to get what is not there; ``warns``: something is not as expected."""

    text: str
    absent: bool = False
    warns: bool = False


@dataclass(frozen=True)
class Heading:
    """A part of a section begins."""

    text: str


Block = Table | Drawings | Note | Heading


@dataclass(frozen=True)
class Section:
    """One heading and what stands below it."""

    anchor: str
    title: str
    blocks: Sequence[Block]

    @property
    def parts(self) -> list[tuple[str, Block]]:
        """(kind in lower case, block), for the template."""
        return [(type(block).__name__.lower(), block) for block in self.blocks]


def moment(created: str | None) -> str | None:
    """``2026-11-30T03:19:49+00:00`` (UTC, as manifests have it) as ``2026-11-30 03:19 UTC``."""
    return created and f"{created[:16].replace('T', ' ')} UTC"


def words(text: object) -> Cell:
    """A cell of text; None is a dash."""
    return Cell(DASH if text is None else str(text))


def told(key: str, figure: dict[str, Any], form: str = "{:.2f}", evaluation: str = "") -> Cell:
    """A figure with its interval beside it. ``key`` is its path in the JSON."""
    if figure["value"] is None:
        return Cell(DASH, data=_data(key, None, evaluation))
    data, aside = _data(key, figure["value"], evaluation), ""
    if figure["interval"] is not None:
        low, high = figure["interval"]
        aside = f"[{form.format(low)}, {form.format(high)}]".replace("%", "").replace("×", "")
        data |= {"low": json.dumps(low), "high": json.dumps(high)}
    return Cell(number(figure, form).replace("%", " %"), aside, data)


def plain(key: str, value: float | int | bool | None, form: str = "{:,}", evaluation: str = "") -> Cell:
    """A number without an interval; None is a dash, a truth value a word."""
    data = _data(key, value, evaluation)
    if value is None:
        return Cell(DASH, data=data)
    if isinstance(value, bool):
        return Cell("yes" if value else "no", data=data)
    return Cell(form.format(value).replace("%", " %"), data=data)


def _data(key: str, value: Any, evaluation: str) -> dict[str, str]:
    found = {"key": key, "value": json.dumps(value)}
    return found | ({"evaluation": evaluation} if evaluation else {})
