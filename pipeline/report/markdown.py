"""A report as Markdown: tables, notes, and drawings as PNG files beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pipeline.report.model import MARKDOWN, Block, Drawings, Heading, Section, Table
from pipeline.report.plot import png

# Characters that Markdown or HTML would interpret.
SPECIAL = str.maketrans({"\\": "\\\\", "|": "\\|", "*": "\\*", "&": "&amp;", "<": "&lt;", "\n": " "})


def write_markdown(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Write ``sections`` as Markdown to ``path``, and their drawings beside it."""
    for section in sections:
        for block in section.shown(MARKDOWN):
            if isinstance(block, Drawings) and block.file:
                png(path.parent / block.file, block)
    path.write_text(markdown(title, sections), encoding="utf-8")


def markdown(title: str, sections: Sequence[Section]) -> str:
    """``sections`` as Markdown, each under its heading; sections without blocks are left out."""
    parts = [f"# {escape(title)}"]
    for section in sections:
        if blocks := section.shown(MARKDOWN):
            parts += [f"## {escape(section.title)}"]
            parts += filter(None, (_block(block, known=(title, section.title)) for block in blocks))
    return "\n\n".join(parts) + "\n"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown: the first column is aligned to the left, the others to the right."""
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "\n".join("| " + " | ".join(map(escape, line)) + " |" for line in lines)


def escape(text: str) -> str:
    """``text`` with everything escaped that Markdown or HTML would interpret."""
    return text.translate(SPECIAL).replace("](", "]\\(")


def code(language: str, lines: Sequence[str]) -> str:
    """``lines`` as a block of code, which no backticks in them can end."""
    text = "\n".join(lines)
    fence = max((run[0] + "`" for run in re.finditer("`{3,}", text)), key=len, default="```")
    return f"{fence}{language}\n{text}\n{fence}"


def _block(block: Block, known: Sequence[str]) -> str:
    """A block as Markdown. A table's caption is left out if it repeats one of the ``known`` headings above it."""
    if isinstance(block, Table):
        table = markdown_table(block.columns, [[cell.plain for cell in row] for row in block.rows])
        return table if block.caption in known else f"{escape(block.caption)}\n\n{table}"
    if isinstance(block, Drawings):
        titles = ", ".join(chart.title for chart in block.charts)
        return f"![{escape(titles)}]({block.file})" if block.file else ""
    return f"### {escape(block.text)}" if isinstance(block, Heading) else escape(block.text)
