"""Tables of what a step of an engine costs: steps a second by the tokens of the verification pass, SPS(B).

One JSON file a table; those of the project lie in data_specs/sps/. Fields, all of them required:

    name              short name, part of a plot's legend
    machine, model    what the steps run on, and which target
    source            "measured", or "model": made from a formula and not measured
    note              how it was measured, or the formula with its numbers
    context           positions that all requests of a measured step held together (0: none, see position_seconds)
    position_seconds  seconds a step that each further position of context costs (reading its keys and values)
    points            [{"tokens": B, "steps_per_second": SPS(B)}, ...] by ascending B, from B = 1
    draft             [{"requests": R, "seconds": of one draft pass}, ...] by ascending R, from R = 1

Between two points the seconds of a step are taken to be linear in B; beyond the last nothing is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from data_specs.errors import UserError
from data_specs.manifest import read_json

FOLDER = Path(__file__).parent / "sps"
SOURCES = ("measured", "model")

Points = tuple[tuple[int, float], ...]


class SpsError(UserError):
    """A table that is missing, damaged or too short; the message names the file and the field."""


@dataclass(frozen=True)
class SpsTable:
    """See the module's docstring. ``points`` hold (tokens, steps a second), ``draft`` (requests, seconds)."""

    name: str
    machine: str
    model: str
    source: str
    note: str
    context: int
    position_seconds: float
    points: Points
    draft: Points

    def check_covers(self, tokens: int, requests: int) -> None:
        """Raise ``SpsError`` unless steps of ``tokens`` and draft passes of ``requests`` lie within the table."""
        for field, unit, points, asked in (
            ("points", "B", self.points, tokens),
            ("draft", "R", self.draft, requests),
        ):
            if asked > points[-1][0]:
                raise SpsError(
                    f"SPS table {self.name}: {field}: reaches {unit} = {points[-1][0]}, needed is {unit} = {asked}"
                )


def names() -> list[str]:
    """The tables that the project brings."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def locate(name: str) -> Path:
    """The file of a table: one of ``names``, or a path to a JSON file. Raises ``SpsError`` with what there is."""
    path = FOLDER / f"{name}.json"
    if path.is_file():
        return path
    if Path(name).is_file():
        return Path(name)
    raise SpsError(f"SPS table {name!r}: expected a file, or one of {names()}")


def read_table(path: Path) -> SpsTable:
    """Read and check the table at ``path``; ``SpsError`` names the file and the field, or the row."""
    value = read_json(path)
    expected = {field.name for field in fields(SpsTable)}
    if not isinstance(value, dict) or set(value) != expected:
        got = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise SpsError(f"{path}: expected the fields {sorted(expected)}, got {got}")
    if value["source"] not in SOURCES:
        raise SpsError(f"{path}: source: expected one of {SOURCES}, got {value['source']!r}")
    for field in ("name", "machine", "model", "note"):
        if not isinstance(value[field], str) or not value[field]:
            raise SpsError(f"{path}: {field}: expected text, got {value[field]!r}")
    for field in ("context", "position_seconds"):
        _number(value[field], 0, f"{path}: {field}")
    return SpsTable(
        **value
        | {
            "points": _points(path, "points", value["points"], "tokens", "steps_per_second"),
            "draft": _points(path, "draft", value["draft"], "requests", "seconds"),
        }
    )


def _points(path: Path, field: str, rows: Any, count: str, value: str) -> Points:
    """Rows of a list, ascending from a count of 1."""
    if not isinstance(rows, list) or not rows:
        raise SpsError(f"{path}: {field}: expected a list of points, got {rows!r}")
    found: list[tuple[int, float]] = []
    for number, row in enumerate(rows):
        place = f"{path}: {field}[{number}]"
        if not isinstance(row, dict) or set(row) != {count, value}:
            raise SpsError(f"{place}: expected {count} and {value}, got {row!r}")
        least = found[-1][0] + 1 if found else 1
        if not isinstance(row[count], int) or row[count] < least or (not found and row[count] != 1):
            wanted = f"at least {least}" if found else "1 in the first point"
            raise SpsError(f"{place}: {count}: expected {wanted}, got {row[count]!r}")
        found.append((row[count], _number(row[value], 1e-12, f"{place}: {value}")))
    return tuple(found)


def _number(value: Any, least: float, place: str) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value < least
    ):
        raise SpsError(f"{place}: expected a finite number >= {least:g}, got {value!r}")
    return float(value)
