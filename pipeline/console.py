"""Output for the user: progress with the time left, tables, plans, and the last screen."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from rich import box
from rich import progress as bars
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

QUIET_SECONDS = 10.0  # between two lines of progress without a terminal (log file, CI)
ENOUGH = 0.03  # share of the work after which the time left is shown
LOG_COLUMNS = 140

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # what a terminal obeys; tabs and line ends are text

# What is printed is text of others as often as ours, so nothing in it is markup: a style is an argument.
# Without a terminal rich assumes 80 columns, which would fold tables and cut paths.
console = Console(
    markup=False, emoji=False, highlight=False,
    soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else LOG_COLUMNS,
)  # fmt: skip


class Bar:
    """Progress of one job; ``advance`` counts work and may show a note at the end of the line."""

    def __init__(self, title: str, total: float, progress: bars.Progress | None) -> None:
        self.title, self.total, self.progress = plain(title), max(total, 1e-9), progress
        self.done = 0.0
        self.started = self.printed = time.monotonic()
        self.task = progress.add_task(self.title, total=total, note="") if progress else None

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        """Count ``amount`` more as done."""
        self.done += amount
        note = plain(note)
        if self.progress is not None and self.task is not None:
            self.progress.update(self.task, completed=self.done, note=note)
        elif time.monotonic() - self.printed >= QUIET_SECONDS:
            self.printed = time.monotonic()
            console.print(f"{self.title}: {self.done:.0f}/{self.total:.0f}{self._left()}  {note}".rstrip())

    def _left(self) -> str:
        """The estimated time left once enough is done: earlier, the first answer of a batch would suggest hours."""
        if self.done < ENOUGH * self.total:
            return ""
        left = (self.printed - self.started) / self.done * (self.total - self.done)
        return f", {duration(left)} left"


@contextmanager
def progress(title: str, total: float, enabled: bool = True) -> Iterator[Bar]:
    """A progress bar; without a terminal, a line every ten seconds; nothing if not ``enabled``."""
    if not enabled or not sys.stdout.isatty():
        bar = Bar(title, total, None)
        if not enabled:
            bar.printed = float("inf")
        yield bar
        return
    columns = (
        bars.TextColumn("{task.description}", markup=False), bars.BarColumn(), bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(), bars.TextColumn("left"), bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[note]}", markup=False),
    )  # fmt: skip
    with bars.Progress(*columns, console=console) as shown:
        yield Bar(title, total, shown)


@contextmanager
def brief() -> Iterator[None]:
    """Inside the block, print no tables, panels or indented lines: for one of many runs, which are summed up later.

    Other lines and progress are still shown.
    """
    global _brief
    before, _brief = _brief, True
    try:
        yield
    finally:
        _brief = before


_brief = False


def plain(text: object) -> str:
    """``text`` as a terminal shows it: a control character, which it would obey, is written as its code."""
    return CONTROL.sub(lambda found: repr(found[0])[1:-1], str(text))


def say(text: str, mark: str = "", style: str = "yellow") -> None:
    """Print one line, after ``mark`` in ``style`` if there is one. An indented line belongs to the table above it."""
    if not (_brief and (mark or text).startswith(" ")):
        console.print(Text.assemble((mark, style), " " if mark and text else "", plain(text)))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> None:
    """Print a table, ``caption`` below its rows; the caller formats numbers."""
    if _brief:
        return
    shown = Table(title=plain(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    shown.caption, shown.caption_justify, shown.caption_style = plain(caption) or None, "left", ""
    for number, column in enumerate(columns):
        shown.add_column(plain(column), justify="left" if number == 0 else "right", no_wrap=number == 0)
    for row in rows:
        shown.add_row(*map(plain, row))
    console.print(shown)


def panel(title: str, lines: Sequence[str]) -> None:
    """Print a framed block of lines."""
    if _brief:
        return
    framed = Panel(Text(plain("\n".join(lines))), title=Text(plain(title)), title_align="left", expand=False)
    # Long lines are folded, so that paths are shown whole.
    console.print(framed, soft_wrap=False, overflow="fold")


def fail(error: BaseException, place: object = "") -> NoReturn:
    """End the program with one clear line instead of a traceback (DRAFTLINE_TRACEBACK=1 shows where it came from).

    The exit code is 130 after Ctrl-C, else 2. A system error without a path is said to be below ``place``.
    """
    if os.environ.get("DRAFTLINE_TRACEBACK") or (isinstance(error, OSError) and error.errno is None):
        raise error
    logging.getLogger("draftline").debug("failed", exc_info=error)
    print(f"draftline: {plain(_line(error, place))}", file=sys.stderr)
    sys.exit(130 if isinstance(error, KeyboardInterrupt) else 2)


def _line(error: BaseException, place: object) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "stopped by Ctrl-C. What was finished is kept; the same command continues"
    if not isinstance(error, OSError):
        return f"error: {error}"
    named = " -> ".join(str(path) for path in (error.filename, error.filename2) if path is not None)
    code = errno.errorcode.get(error.errno or 0, str(error.errno))
    return (
        f"error: {named or place or 'a file'}: {error.strerror} ({code}). What was finished is kept: when this is "
        "solved, the same command continues"
    )


def duration(seconds: float) -> str:
    """``seconds`` as 45 s, 3 min 20 s or 2 h 05 min."""
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def size(count: float) -> str:
    """``count`` bytes as 812 B, 3.4 MB or 1.2 TB (powers of 1000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
