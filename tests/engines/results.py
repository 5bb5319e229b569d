"""The table of docs/engines.md: what an engine counted and what draftline counted, or why there is no result.

Each row is written at once as a line of results.jsonl beside the environments, so that several runs and processes fill
one table. If a test runs again, its rows replace those of its earlier run. A run of all tests begins a new table.
"""

from __future__ import annotations

import json
import os
import time
from datetime import date
from pathlib import Path
from typing import Any

import environments
import pytest

from pipeline.report.markdown import markdown_table

HEADER = (
    "engine",
    "target",
    "draft",
    "engine: drafts / accepted [by position]",
    "draftline",
    "outcome",
    "day",
)
RUN = f"{os.getpid()}-{time.time_ns()}"  # identifies this process
SHOWN = 200  # the longest reason, in characters


def add(engine: str, target: str, draft: str, theirs: object, ours: object, same_output: bool) -> None:
    """Add a comparison of counters. ``same_output``: answers with the draft, without it and by draftline are equal."""
    apart = [what for what, same in (("output", same_output), ("counters", theirs == ours)) if not same]
    outcome = f"{' and '.join(apart)} DIFFERENT" if apart else "output and counters equal"
    _append((engine, target, draft, str(theirs), str(ours), outcome))


def add_figure(engine: str, target: str, draft: str, shown: str, holds: bool) -> None:
    """Add a comparison whose result is one figure."""
    _append((engine, target, draft, shown, "", "equal" if holds else "DIFFERENT"))


def missing(engine: str, what: str, outcome: str) -> None:
    """Add a row for a missing result with its reason: one line, shortened, without a path of this machine."""
    text = " ".join(outcome.replace(f"{environments.root()}/", "").split()).replace("|", "/")
    text = text if len(text) <= SHOWN else f"{text[: SHOWN // 3]} ... {text[-SHOWN // 2 :]}"
    _append((engine, "-", what, "-", "-", text))


def record(item: pytest.Item, report: pytest.TestReport) -> None:
    """Add a row for a test that was skipped or failed."""
    names = [name for name in getattr(item, "fixturenames", []) if name in environments.RECIPES]
    engine = f"{names[0]} {environments.RECIPES[names[0]].version}" if names else item.path.stem
    if report.skipped:
        said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        missing(engine, item.name, f"not run: {said.removeprefix('Skipped: ')}")
    elif report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        missing(engine, item.name, f"FAILED: {crash.message if crash else report.longrepr}")


def begin() -> None:
    """Begin a new table."""
    _path().unlink(missing_ok=True)


def rows() -> list[tuple[str, ...]]:
    """The table's rows, file by file: for each test, those of its latest run."""
    lines = [json.loads(line) for line in _path().read_text().splitlines()] if _path().exists() else []
    latest = {line["test"]: line["run"] for line in lines}
    kept = [line for line in lines if line["run"] == latest[line["test"]]]
    kept.sort(key=lambda line: line["test"].partition("::")[0])
    return [(*line["cells"], line["day"]) for line in kept]


def write() -> str:
    """Write the table to results.md beside the environments, and return it."""
    text = markdown_table(HEADER, rows()) + "\n"
    partial = _path().with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(text)
    partial.replace(_path().with_suffix(".md"))
    return text


def _path() -> Path:
    return environments.root() / "results.jsonl"


def _append(cells: tuple[str, ...]) -> None:
    """Append the line with one write, so that processes do not mix their lines."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    line: dict[str, Any] = {"run": RUN, "test": test, "day": str(date.today()), "cells": cells}
    _path().parent.mkdir(parents=True, exist_ok=True)
    with _path().open("a") as file:
        file.write(json.dumps(line) + "\n")
