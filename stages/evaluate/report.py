"""The report of an evaluation: summary.json, summary.md with its plots, report.html, and the last screen."""

from __future__ import annotations

from data_specs.results.study import read_study
from data_specs.results.summary import MARKDOWN, Summary, read_summary, write_summary
from pipeline.report.evaluation import Evaluation, in_the_making
from pipeline.report.markdown import write_markdown
from pipeline.report.page import evaluation_sections, write_html
from pipeline.report.screen import show_evaluation
from pipeline.store.artifacts import Artifact, Store, Work
from pipeline.store.lineage import made_of_draft


def write_report(work: Work, store: Store, result: Summary) -> None:
    """Write ``result`` into the working folder in every form; the page also shows the latest study of the draft."""
    write_summary(work.path, result)
    evaluation = in_the_making(work, result, store)
    write_markdown(work.path / MARKDOWN, evaluation.title, evaluation_sections(evaluation))
    studies = made_of_draft(store, "study", work.parents["draft"])
    write_html(work.path, [evaluation], read_study(studies[0].path) if studies else None)


def show(artifact: Artifact) -> None:
    """Print the last screen from the stored summary: tables, artifact, and what to type next."""
    one = Evaluation(artifact.reference, read_summary(artifact.path), artifact.manifest.created)
    show_evaluation("Evaluation", evaluation_sections(one), artifact, "every round")
