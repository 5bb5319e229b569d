"""``stage=report evaluations=a,b``: one page that shows evaluations and the study of their draft."""

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
LONGEST = 100  # characters of an artifact's name, at most


def run_report(config: Config, store: Store) -> Artifact | None:
    """Put ``config.evaluations`` on one page; returns its artifact, new or reused, or None with ``plan``.

    Raises ``ConfigError`` if no evaluation is named or one is named twice, ``ArtifactError`` for an unknown name, and
    ``ReportError`` for evaluations without a common benchmark.
    """
    evaluations = resolve(config.evaluations, store)
    study = find_study(evaluations, store)
    told = [committed(one, store, label) for label, one in evaluations.items()]
    common_benchmarks(told)
    parents = {label: one.manifest.fingerprint for label, one in evaluations.items()}
    parents |= {STUDY: study.manifest.fingerprint} if study else {}
    inputs = fingerprint(SCHEMA_VERSION, parents)
    if config.plan:
        console.say(f"Plan: one page of {', '.join(parents)}, which takes a second. Nothing was done.")
        return None
    found = store.find(KIND, inputs)
    if found is not None and is_main():
        console.say(f"Reusing the report {found.reference} ({found.path})")
    artifact = found or _commit(store, told, study, parents, inputs)
    if is_main():
        show(artifact, told)
    return artifact


def resolve(references: Sequence[str], store: Store) -> dict[str, Artifact]:
    """Label -> evaluation, in the order of ``references``.

    A label is ``name:version``. If evaluations of two stores share it, the start of the fingerprint is added.
    """
    if not references:
        raise ConfigError(
            "evaluations: expected at least one, as in evaluations=smollm2_dspark,smollm2_mtp:v1; got none"
        )
    found: dict[str, Artifact] = {}  # fingerprint -> evaluation
    for one in (store.resolve("evaluation", reference) for reference in references):
        if one.manifest.fingerprint in found:
            raise ConfigError(
                f"evaluations={list(references)}: expected each evaluation once, but {one.reference} is named twice"
            )
        found[one.manifest.fingerprint] = one
    shared = Counter(one.reference for one in found.values())
    return {
        f"{one.reference} ({known[:8]})" if shared[one.reference] > 1 else one.reference: one
        for known, one in found.items()
    }


def find_study(evaluations: dict[str, Artifact], store: Store) -> Artifact | None:
    """The latest serving study of the draft, if all evaluations are of the same draft."""
    drafts = {one.manifest.parents.get("draft") for one in evaluations.values()}
    studies = made_of_draft(store, STUDY, drafts.pop()) if len(drafts) == 1 else []
    return studies[0] if studies else None


def _commit(
    store: Store, told: Sequence[Evaluation], study: Artifact | None, parents: dict[str, str], inputs: str
) -> Artifact:
    """Let one of the ranks make the page and commit it under the fingerprint ``inputs``."""
    recorded = {"evaluations": [one.label for one in told]}
    work = begin_once(store, KIND, artifact_name(told), SCHEMA_VERSION, inputs, parents, recorded)
    if isinstance(work, Artifact):
        return work
    folder = work.path

    def finish() -> dict[str, Any]:
        write_html(folder, told, read_study(study.path) if study else None)
        return {"evaluations": len(told), "benchmarks": len(common_benchmarks(told))}

    return commit_once(store, work, finish)


def artifact_name(told: Sequence[Evaluation]) -> str:
    """The names of the evaluations, each once, cut to ``LONGEST`` characters."""
    names = dict.fromkeys(one.label.partition(":")[0] for one in told)
    return "_vs_".join(names)[:LONGEST]


def show(artifact: Artifact, told: Sequence[Evaluation]) -> None:
    """Print the last screen: where the page is, and what to type next."""
    console.panel(
        "Report",
        [
            f"report      {artifact.path / PAGE}   (opens in any browser, also offline)",
            f"artifact    {artifact.reference}",
            f"shows       {', '.join(one.label for one in told)}",
            "next        python -m pipeline stage=list   (evaluations to name in evaluations=a,b)",
        ],
    )
