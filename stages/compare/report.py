"""The report of a comparison: comparison.json, comparison.md with its plots, report.html, and the last screen."""

from __future__ import annotations

from pathlib import Path

from data_specs.results.comparison import MARKDOWN, ComparisonResult, read_comparison, write_comparison
from pipeline import console
from pipeline.report.comparison import page, sections, title
from pipeline.report.markdown import write_markdown
from pipeline.report.page import PAGE, html
from pipeline.report.screen import show as show_sections
from pipeline.store.artifacts import Artifact


def write_report(folder: Path, result: ComparisonResult) -> None:
    """Write ``result`` into ``folder`` in every form."""
    write_comparison(folder, result)
    write_markdown(folder / MARKDOWN, title(result), sections(result))
    (folder / PAGE).write_text(html(page(result)), encoding="utf-8")


def show(artifact: Artifact) -> None:
    """Print the last screen from the stored result: tables, artifact, and what to type next."""
    result = read_comparison(artifact.path)
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
