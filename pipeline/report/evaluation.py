"""What a page is told about one evaluation: its summary, how it was made, and from what."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from data_specs.results.summary import EvaluationFacts, Metrics, ServedSummary, Summary, read_summary
from pipeline.report.model import DASH, MACRO, moment
from pipeline.store.artifacts import Artifact, Store, Work, git_revision, package_versions
from pipeline.store.lineage import Ancestor, lineage

FACTS = {  # of summary["facts"], in this order; what else stands there follows
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
    """``label`` tells it from others of a page; ``summary`` is its summary.json."""

    label: str
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
        """Facts of an evaluation in this process; not of a server's."""
        facts = self.summary.facts
        assert isinstance(facts, EvaluationFacts)
        return facts

    @property
    def positions(self) -> int:
        """The longest block."""
        return self.summary.positions

    @property
    def named(self) -> dict[str, Metrics]:
        """Benchmark -> metrics, of the benchmarks that have any, in the order asked for."""
        found = {name: self.summary.benchmarks[name].metrics for name in self.summary.order}
        return {name: metrics for name, metrics in found.items() if metrics is not None}

    @property
    def rows(self) -> list[tuple[str, str, Metrics]]:
        """(title, key in the JSON, metrics) of ``named`` and, where there are several, of their average."""
        rows, macro = [(name, name, metrics) for name, metrics in self.named.items()], self.summary.macro
        return rows if len(rows) < 2 or macro is None else [*rows, (MACRO, "macro", macro)]


def in_the_making(work: Work, summary: Summary | ServedSummary, store: Store) -> Evaluation:
    """An evaluation that is about to be committed: made now, by the packages that run."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    ancestors = lineage(store, work.parents)
    return Evaluation(
        work.name, summary, now, package_versions(), git_revision(), work.fingerprint, ancestors
    )


def committed(artifact: Artifact, store: Store, label: str | None = None) -> Evaluation:
    """An evaluation as it lies on the disk; raises ``ManifestError`` where its summary is missing or damaged."""
    made = artifact.manifest
    return Evaluation(
        label=label or artifact.reference,
        summary=read_summary(artifact.path),
        created=made.created,
        packages=made.packages,
        revision=made.revision,
        fingerprint=made.fingerprint,
        ancestors=lineage(store, made.parents),
    )


def facts(evaluation: Evaluation) -> dict[str, str]:
    """Name -> text of everything that the figures depend on."""
    found = asdict(evaluation.summary.facts)
    keys = [*(k for k in FACTS if k in found), *(k for k in found if k not in FACTS and k != "prompts")]
    told = {FACTS.get(key, key.replace("_", " ").capitalize()): _fact(key, found[key]) for key in keys}
    return told | {
        "Prompts": ", ".join(f"{name} {found['prompts'][name]}" for name in evaluation.summary.order),
        "Made": moment(evaluation.created) or DASH,
        "Packages": ", ".join(f"{name} {version}" for name, version in sorted(evaluation.packages.items())),
        "Revision of draftline": (evaluation.revision or "unknown")[:12],
    }


def _fact(key: str, value: Any) -> str:
    if key == "thinking" and value is None:
        return "as the chat template has it"
    if key == "trained" and value is None:
        return "not known: the answers that the draft was trained on are not in the store"
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items() if one is not None)
    if isinstance(value, bool):
        return "on" if value else "off"
    return DASH if value is None else str(value)
