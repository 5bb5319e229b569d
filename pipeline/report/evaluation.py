"""One evaluation as reports see it: its summary, how it was made, and its ancestors."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from data_specs.results.summary import EvaluationFacts, Metrics, ServedSummary, Summary, read_summary
from pipeline.report.model import DASH, MACRO, listed, moment
from pipeline.store.artifacts import Artifact, Store, Work, git_revision, package_versions
from pipeline.store.lineage import Ancestor, lineage

FACTS = {  # field of the summary's facts -> name; fields that are not listed here come after these
    "draft": "Draft",
    "target": "Target",
    "sampler": "Sampler",
    "threshold": "Confidence threshold",
    "max_new_tokens": "New tokens at most",
    "thinking": "Thinking mode",
    "device": "Device",
    "dtype": "Type",
    "batch": "Prompts at a time",
    "trained": "Prompts trained on",
}


@dataclass(frozen=True)
class Evaluation:
    """An evaluation and where it comes from."""

    label: str  # tells it from others on a page
    summary: Summary | ServedSummary
    created: str
    packages: Mapping[str, str] = field(default_factory=dict)
    revision: str | None = None
    fingerprint: str | None = None
    ancestors: Sequence[Ancestor] = ()

    @property
    def title(self) -> str:
        """Draft and target."""
        return f"{self.summary.facts.draft} on {self.summary.facts.target}"

    @property
    def own_facts(self) -> EvaluationFacts:
        """The facts of an in-process evaluation; a server's evaluation has others."""
        facts = self.summary.facts
        assert isinstance(facts, EvaluationFacts)
        return facts

    @property
    def positions(self) -> int:
        """The length of the longest block."""
        return self.summary.positions

    @property
    def named(self) -> dict[str, Metrics]:
        """Benchmark -> metrics, in the order asked for, without benchmarks that have none."""
        found = {name: self.summary.benchmarks[name].metrics for name in self.summary.order}
        return {name: metrics for name, metrics in found.items() if metrics is not None}

    @property
    def rows(self) -> list[tuple[str, str, Metrics]]:
        """(title, key in the JSON, metrics) of ``named`` and, if they are several, of their average."""
        rows, macro = [(name, name, metrics) for name, metrics in self.named.items()], self.summary.macro
        return rows if len(rows) < 2 or macro is None else [*rows, (MACRO, "macro", macro)]


def in_the_making(work: Work, summary: Summary | ServedSummary, store: Store) -> Evaluation:
    """An evaluation that is about to be committed, with the current time and packages."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    origin = package_versions(), git_revision(), work.fingerprint, lineage(store, work.parents)
    return Evaluation(work.name, summary, now, *origin)


def committed(artifact: Artifact, store: Store, label: str | None = None) -> Evaluation:
    """Read a committed evaluation; raises ``ManifestError`` if its summary is missing or damaged."""
    made, summary = artifact.manifest, read_summary(artifact.path)
    origin = made.packages, made.revision, made.fingerprint, lineage(store, made.parents)
    return Evaluation(label or artifact.reference, summary, made.created, *origin)


def facts(evaluation: Evaluation) -> dict[str, str]:
    """Name -> text for everything that the figures depend on."""
    found = asdict(evaluation.summary.facts)
    keys = [*(k for k in FACTS if k in found), *(k for k in found if k not in FACTS and k != "prompts")]
    told = {FACTS.get(key, key.replace("_", " ").capitalize()): _fact(key, found[key]) for key in keys}
    return told | {
        "Prompts": ", ".join(f"{name} {found['prompts'][name]}" for name in evaluation.summary.order),
        "Made": moment(evaluation.created) or DASH,
        "Packages": listed(dict(sorted(evaluation.packages.items()))),
        "Revision of draftline": (evaluation.revision or "unknown")[:12],
    }


def _fact(key: str, value: Any) -> str:
    if key == "thinking" and value is None:
        return "the chat template's default"
    if key == "trained" and value is None:
        return "unknown, because the answers that the draft was trained on are not in the store"
    if isinstance(value, dict):
        return listed(value)
    if isinstance(value, bool):
        return "on" if value else "off"
    return DASH if value is None else str(value)
