"""Tables of the cost of an engine's step: SPS(B), the steps per second with B tokens in the verification pass.

Each table is one JSON file; the project's own are in data_specs/sps/. All fields are required:

    name              short name for the legend of a plot
    machine, model    the hardware, and the target
    source            "measured", or "model" if it comes from a formula
    note              how it was measured, or the formula with its numbers
    context           positions that all requests of a measured step held together (0: none, see position_seconds)
    position_seconds  seconds that each further position of context adds to a step (reading its keys and values)
    points            [{"tokens": B, "steps_per_second": SPS(B)}, ...] by ascending B, from B = 1
    draft             [{"requests": R, "seconds": of one draft pass}, ...] by ascending R, from R = 1

Between two points, the seconds of a step are linear in B. Beyond the last point, nothing is known.
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
    """A table is missing, damaged or too short; the message names the file and the field."""


@dataclass(frozen=True)
class SpsTable:
    """See the module's docstring. ``points`` hold (tokens, steps per second), ``draft`` (requests, seconds)."""

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
        """Raise ``SpsError`` unless the table covers steps of ``tokens`` and draft passes of ``requests``."""
        wanted = (("points", "B", self.points, tokens), ("draft", "R", self.draft, requests))
        for field, unit, points, asked in wanted:
            if asked > points[-1][0]:
                raise SpsError(
                    f"SPS table {self.name}: {field}: ends at {unit} = {points[-1][0]}, but {unit} = {asked} is needed"
                )


def names() -> list[str]:
    """The names of the project's own tables."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def locate(name: str) -> Path:
    """The file of a table: one of ``names``, or a path to a JSON file. Otherwise raises ``SpsError`` with the names."""
    path = FOLDER / f"{name}.json"
    if path.is_file():
        return path
    if Path(name).is_file():
        return Path(name)
    raise SpsError(f"SPS table {name!r}: expected a file, or one of {names()}")


def read_table(path: Path) -> SpsTable:
    """Read and check the table at ``path``. Raises ``SpsError`` naming the file and the field or row."""
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
    points = _points(path, "points", value["points"], "tokens", "steps_per_second")
    return SpsTable(
        **value | {"points": points, "draft": _points(path, "draft", value["draft"], "requests", "seconds")}
    )


def _points(path: Path, field: str, rows: Any, count: str, value: str) -> Points:
    """The (count, value) of the ``rows``; the counts must ascend from 1."""
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
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < least:
        raise SpsError(f"{place}: expected a finite number >= {least:g}, got {value!r}")
    return float(value)
