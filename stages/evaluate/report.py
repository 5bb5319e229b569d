"""The report of an evaluation: summary.json, summary.md with its plots, report.html, and the last screen."""

from __future__ import annotations

from typing import Any

from data_specs.manifest import read_json, write_json
from data_specs.study import RESULT as STUDY
from pipeline.report.evaluation import Evaluation, in_the_making
from pipeline.report.markdown import write_markdown
from pipeline.report.page import evaluation_sections, write_html
from pipeline.report.screen import show_evaluation
from pipeline.report.summary import MARKDOWN, SUMMARY
from pipeline.store.artifacts import Artifact, Store, Work
from pipeline.store.lineage import made_of_draft


def write_report(work: Work, store: Store, result: dict[str, Any]) -> None:
    """Write ``result`` (what summary.json holds) into the working folder in every form.

    The page also shows the latest study of the draft.
    """
    write_json(work.path / SUMMARY, result)
    evaluation = in_the_making(work, result, store)
    write_markdown(work.path / MARKDOWN, evaluation.title, evaluation_sections(evaluation))
    studies = made_of_draft(store, "study", work.parents["draft"])
    write_html(work.path, [evaluation], read_json(studies[0].path / STUDY) if studies else None)


def show(artifact: Artifact) -> None:
    """The last screen, from the stored summary: tables, artifact, and what to type next."""
    one = Evaluation(artifact.reference, read_json(artifact.path / SUMMARY), artifact.manifest.created)
    show_evaluation("Evaluation", evaluation_sections(one), artifact, "every round")
