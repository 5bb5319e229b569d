"""``stage=report evaluations=a,b``: one page of one or more evaluations and of the study of their draft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from data_specs.manifest import fingerprint
from data_specs.results.study import read_study
from pipeline import console
from pipeline.config import Config, ConfigError
from pipeline.ranks import is_main
from pipeline.report.evaluation import Evaluation, committed
from pipeline.report.page import PAGE, write_html
from pipeline.report.side_by_side import common_benchmarks
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.lineage import made_of_draft
from pipeline.store.work import begin_once, commit_once

KIND, SCHEMA_VERSION = "report", 1
STUDY = "study"
LONGEST = 100  # characters of an artifact's name


def run_report(config: Config, store: Store) -> Artifact | None:
    """Put ``config.evaluations`` into one page and return it, new or reused; None with ``plan``.

    Raises ``ConfigError`` if no evaluation is named, or one twice, ``ArtifactError`` for an unknown name, and
    ``ReportError`` for evaluations that share no benchmark.
    """
    evaluations = resolve(config.evaluations, store)
    study = find_study(evaluations, store)
    told = [committed(one, store, label) for label, one in evaluations.items()]
    common_benchmarks(told)
    parents = {label: one.manifest.fingerprint for label, one in evaluations.items()}
    parents |= {STUDY: study.manifest.fingerprint} if study else {}
    inputs = fingerprint(SCHEMA_VERSION, parents)
    if config.plan:
        console.say(f"Plan: one page of {', '.join(parents)}; a second's work. Nothing was done.")
        return None
    found = store.find(KIND, inputs)
    if found is not None and is_main():
        console.say(f"the report is already there: {found.reference} ({found.path})")
    artifact = found or _commit(store, told, study, parents, inputs)
    if is_main():
        show(artifact, told)
    return artifact


def resolve(references: Sequence[str], store: Store) -> dict[str, Artifact]:
    """Label -> evaluation, in the order asked for. A label is ``name:version``; where evaluations of two stores share
    it, the first characters of the fingerprint are added.
    """
    if not references:
        raise ConfigError(
            "evaluations: expected at least one, as in evaluations=smollm2_dspark,smollm2_mtp:v1; got none"
        )
    found = [store.resolve("evaluation", reference) for reference in references]
    for place, one in enumerate(found):
        if one.manifest.fingerprint in (other.manifest.fingerprint for other in found[:place]):
            raise ConfigError(
                f"evaluations={list(references)}: expected each evaluation once, but {one.reference} is named twice"
            )
    shared = Counter(one.reference for one in found)
    return {_label(one, shared[one.reference] > 1): one for one in found}


def _label(one: Artifact, shared: bool) -> str:
    return f"{one.reference} ({one.manifest.fingerprint[:8]})" if shared else one.reference


def find_study(evaluations: dict[str, Artifact], store: Store) -> Artifact | None:
    """The latest serving study of the draft, where all evaluations are of one draft."""
    drafts = {one.manifest.parents.get("draft") for one in evaluations.values()}
    studies = made_of_draft(store, STUDY, drafts.pop()) if len(drafts) == 1 else []
    return studies[0] if studies else None


def _commit(
    store: Store, told: Sequence[Evaluation], study: Artifact | None, parents: dict[str, str], inputs: str
) -> Artifact:
    """Make the page and commit it under the fingerprint ``inputs``; one of the ranks does it."""
    recorded = {"evaluations": [one.label for one in told]}
    work = begin_once(store, KIND, artifact_name(told), SCHEMA_VERSION, inputs, parents, recorded)
    if isinstance(work, Artifact):
        return work
    folder = work.path

    def finish() -> dict[str, Any]:
        write_html(folder, told, read_study(study.path) if study else None)
        benchmarks = common_benchmarks(told)
        return {"evaluations": len(told), "benchmarks": len(benchmarks)}

    return commit_once(store, work, finish)


def artifact_name(told: Sequence[Evaluation]) -> str:
    """The names of the evaluations, each once."""
    names = dict.fromkeys(one.label.partition(":")[0] for one in told)
    return "_vs_".join(names)[:LONGEST]


def show(artifact: Artifact, told: Sequence[Evaluation]) -> None:
    """The last screen: where the page is, and what to type next."""
    console.panel(
        "Report",
        [
            f"report      {artifact.path / PAGE}   (opens in any browser, asks nothing of the network)",
            f"artifact    {artifact.reference}",
            f"shows       {', '.join(one.label for one in told)}",
            "next        python -m pipeline stage=list   (evaluations to name in evaluations=a,b)",
        ],
    )
