"""The report of a comparison: comparison.json, comparison.md with its plots, report.html, and the last screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_specs.manifest import read_json, write_json
from pipeline import console
from pipeline.report.comparison import page, sections, title
from pipeline.report.markdown import write_markdown
from pipeline.report.page import PAGE, html
from pipeline.report.screen import show as show_sections
from pipeline.store.artifacts import Artifact

RESULT, MARKDOWN = "comparison.json", "comparison.md"


def write_report(folder: Path, result: dict[str, Any]) -> None:
    """Write ``result`` (of run.py) into ``folder`` in every form."""
    write_json(folder / RESULT, result)
    write_markdown(folder / MARKDOWN, title(result), sections(result))
    (folder / PAGE).write_text(html(page(result)), encoding="utf-8")


def show(artifact: Artifact) -> None:
    """The last screen, from the stored result: tables, artifact, and what to type next."""
    result = read_json(artifact.path / RESULT)
    show_sections(sections(result))
    console.panel(
        "Comparison",
        [
            f"comparison  {artifact.reference}",
            f"folder      {artifact.path}",
            f"report      {artifact.path / PAGE} (opens in any browser; {MARKDOWN} and its plots beside it)",
            "next        python -m pipeline stage=list   (the draft and the evaluation of every variant)",
        ],
    )
