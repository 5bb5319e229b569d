"""Prints a report as the last screen: its tables, then its notes; after an evaluation, also what to type next."""

from __future__ import annotations

from collections.abc import Sequence

from data_specs.results.summary import SUMMARY
from pipeline import console
from pipeline.report.model import SCREEN, Note, Section, Table
from pipeline.report.page import PAGE
from pipeline.store.artifacts import Artifact

MARGIN = 2  # characters between two columns of a table


def show(sections: Sequence[Section]) -> None:
    """Print the blocks of ``sections`` that are for the screen."""
    blocks = [block for section in sections for block in section.shown(SCREEN)]
    for block in blocks:
        if isinstance(block, Table):
            show_table(block)
    for block in blocks:
        if isinstance(block, Note):
            console.say(f"  {block.text}")


def show_table(table: Table) -> None:
    """Print ``table``, in its parts if the screen is too narrow for the whole table."""
    lines = [table.columns, *([cell.plain for cell in row] for row in table.rows)]
    width = sum(max(map(len, column)) + MARGIN for column in zip(*lines, strict=True))
    for chosen in table.parts if width > console.console.width and table.parts else [table.columns]:
        places = [list(table.columns).index(title) for title in chosen]
        rows = [[line[place] for place in places] for line in lines[1:]]
        console.table(table.caption, chosen, rows)


def show_evaluation(title: str, sections: Sequence[Section], artifact: Artifact, beside: str) -> None:
    """Print ``sections``, the folder of the evaluation, and what to type next; ``beside`` names its raw data."""
    show(sections)
    console.panel(
        title,
        [
            f"evaluation  {artifact.reference}",
            f"folder      {artifact.path}",
            f"report      {artifact.path / PAGE} (opens in any browser; {SUMMARY} and {beside} beside it)",
            f"next        python -m pipeline stage=report evaluations={artifact.reference},OTHER   (side by side)",
            "            python -m pipeline stage=list",
        ],
    )
