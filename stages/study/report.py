"""The report of a study: study.json, study.md with its plots, report.html, and the last screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from data_specs.results.study import StudyResult, read_study, write_study
from data_specs.results.summary import CalibrationEffect
from data_specs.study import MARKDOWN
from pipeline import console
from pipeline.report.confidence import in_a_line
from pipeline.report.evaluation import Evaluation
from pipeline.report.markdown import write_markdown
from pipeline.report.page import PAGE, write_html
from pipeline.report.screen import show as show_sections
from pipeline.report.study import serving, title
from pipeline.store.artifacts import Artifact


def write_report(folder: Path, result: StudyResult, evaluations: Sequence[Evaluation] = ()) -> None:
    """Write ``result`` into ``folder`` in every form; the page also shows ``evaluations``."""
    write_study(folder, result)
    write_markdown(folder / MARKDOWN, title(result), [serving(result)])
    write_html(folder, evaluations, result)


def show(artifact: Artifact, calibration: CalibrationEffect | None = None) -> None:
    """Print the last screen from the stored result; ``calibration`` is the effect of the study's temperatures."""
    result = read_study(artifact.path)
    show_sections([serving(result)])
    if calibration:
        console.say(f"  {in_a_line(calibration)}")
    console.panel(
        "Study",
        [
            f"study   {artifact.reference}",
            f"folder  {artifact.path}",
            f"report  {artifact.path / PAGE} (opens in any browser; plots and every step beside it)",
            "next    python -m pipeline experiment=serving_study study.concurrencies=[1,2,4,8,16]",
        ],
    )
