"""The table of docs/engines.md: what an engine counted beside what draftline did, or why there is nothing."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from pipeline.reporting import markdown_table

HEADER = ("engine", "target", "draft", "engine: drafts / accepted [by position]", "draftline", "")
ROWS: list[tuple[str, ...]] = []


def add(engine: str, target: str, draft: str, theirs: object, ours: object) -> None:
    """A comparison."""
    ROWS.append((engine, target, draft, str(theirs), str(ours), "equal" if theirs == ours else "DIFFERENT"))


def add_figure(engine: str, target: str, draft: str, shown: str, holds: bool) -> None:
    """A comparison whose outcome is one figure."""
    ROWS.append((engine, target, draft, shown, "", "equal" if holds else "DIFFERENT"))


def missing(engine: str, reason: str) -> None:
    """An engine that was not run, once, and why."""
    row = (engine, "-", "-", "-", "-", f"not run: {reason[:200]}")
    if row not in ROWS:
        ROWS.append(row)


def write(path: Path) -> str:
    """The table, also written to ``path``."""
    text = f"Seen on {date.today()}.\n\n" + markdown_table(HEADER, ROWS) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return text
