"""What an artifact was made from, back to the answers (references and fingerprints, no path of this machine), and what
was made from a draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from data_specs.calibration import CALIBRATION
from data_specs.manifest import MANIFEST, read_manifest
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


def calibrations(store: Store, folder: Path, draft: str) -> list[Path]:
    """Folders that hold a calibration of the draft in ``folder`` with the fingerprint ``draft``, the latest first.

    Every evaluation keeps its own; an import or an export brings one along.
    """
    made = [one.path for one in made_of_draft(store, "evaluation", draft)]
    return [place for place in (*made, folder) if (place / CALIBRATION).is_file()]


def behind(store: Store, draft: Artifact | Path | None) -> dict[str, Artifact]:
    """The draft and what it was made from, by kind, as far as ``store`` holds it; of an export too."""
    found: dict[str, Artifact] = {}
    if isinstance(draft, Path) and (draft / MANIFEST).is_file():
        draft = Artifact(draft, read_manifest(draft))
    waiting = [draft] if isinstance(draft, Artifact) else []
    while waiting:
        artifact = waiting.pop()
        found.setdefault(artifact.manifest.kind, artifact)
        parents = (
            store.find(*parent) for parent in artifact.manifest.parents.items() if parent[0] not in found
        )
        waiting += [parent for parent in parents if parent is not None]
    return found


def _ancestor(role: str, fingerprint: str, artifact: Artifact | None) -> Ancestor:
    if artifact is None:
        return Ancestor(role, None, fingerprint)
    manifest = artifact.manifest
    return Ancestor(role, artifact.reference, fingerprint, manifest.created, manifest.revision)
