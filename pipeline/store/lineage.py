"""What an artifact was made from, back to the answers (references and fingerprints, no path of this machine), and what
was made from a draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.store.artifacts import Artifact, Store


@dataclass(frozen=True)
class Ancestor:
    """One artifact of a lineage; ``reference`` and ``created`` are None where the store does not hold it."""

    role: str  # draft, cache, answers: as the child's manifest calls it
    reference: str | None
    fingerprint: str
    created: str | None = None
    revision: str | None = None


def lineage(store: Store, parents: Mapping[str, str]) -> list[Ancestor]:
    """The ancestors of an artifact with ``parents`` (role -> fingerprint), each once, the nearest first."""
    known = {artifact.manifest.fingerprint: artifact for artifact in store.list()}
    found: dict[str, Ancestor] = {}
    waiting = list(parents.items())
    while waiting:
        role, fingerprint = waiting.pop(0)
        if fingerprint in found:
            continue
        artifact = known.get(fingerprint)
        found[fingerprint] = _ancestor(role, fingerprint, artifact)
        waiting += artifact.manifest.parents.items() if artifact else []
    return list(found.values())


def made_of_draft(store: Store, kind: str, draft: str | None) -> list[Artifact]:
    """Artifacts of ``kind`` made from the draft with this fingerprint, the latest first; None: of no draft."""
    made = [one for one in store.list(kind) if draft and one.manifest.parents.get("draft") == draft]
    return sorted(reversed(made), key=lambda one: one.manifest.created, reverse=True)


def _ancestor(role: str, fingerprint: str, artifact: Artifact | None) -> Ancestor:
    if artifact is None:
        return Ancestor(role, None, fingerprint)
    manifest = artifact.manifest
    return Ancestor(role, artifact.reference, fingerprint, manifest.created, manifest.revision)
