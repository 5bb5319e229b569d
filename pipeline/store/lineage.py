"""What an artifact was made from, back to the answers, and what was made from a draft.

References and fingerprints identify the artifacts; no path of this machine does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from data_specs.calibration import CALIBRATION
from data_specs.manifest import MANIFEST, ManifestError, read_manifest
from pipeline import console
from pipeline.store.artifacts import Artifact, Store


@dataclass(frozen=True)
class Ancestor:
    """One artifact of a lineage. Without the artifact in the store, only ``role`` and ``fingerprint`` are known."""

    role: str  # draft, cache, answers: as the child's manifest calls it
    reference: str | None
    fingerprint: str
    created: str | None = None
    revision: str | None = None


def lineage(store: Store, parents: Mapping[str, str]) -> list[Ancestor]:
    """The ancestors of an artifact with ``parents`` (role -> fingerprint), each once, nearest first."""
    known = {artifact.manifest.fingerprint: artifact for artifact in store.list()}
    found: dict[str, Ancestor] = {}
    waiting = list(parents.items())
    while waiting:
        role, fingerprint = waiting.pop(0)
        if fingerprint in found:
            continue
        if (artifact := known.get(fingerprint)) is None:
            found[fingerprint] = Ancestor(role, None, fingerprint)
            continue
        manifest = artifact.manifest
        found[fingerprint] = Ancestor(
            role, artifact.reference, fingerprint, manifest.created, manifest.revision
        )
        waiting += manifest.parents.items()
    return list(found.values())


def made_of_draft(store: Store, kind: str, draft: str | None) -> list[Artifact]:
    """Artifacts of ``kind`` made from the draft with the fingerprint ``draft``, latest first; [] if that is None.

    Damaged ones are named and passed over: they must not stop work on the others.
    """
    made = []
    for one in store.list(kind):
        if draft and one.manifest.parents.get("draft") == draft:
            try:
                made.append(one.verify())
            except ManifestError as error:
                console.say(f"passed over: {error}")
    return sorted(reversed(made), key=lambda one: one.manifest.created, reverse=True)


def calibrations(store: Store, folder: Path, draft: str) -> list[Path]:
    """Folders that hold a calibration of the draft in ``folder`` with the fingerprint ``draft``, the latest first.

    Every evaluation keeps its own; an import or an export brings one along.
    """
    made = [one.path for one in made_of_draft(store, "evaluation", draft)]
    return [place for place in (*made, folder) if (place / CALIBRATION).is_file()]


def behind(store: Store, draft: Artifact | Path | None) -> dict[str, Artifact]:
    """The draft (or its export) and what it was made from, by kind, as far as ``store`` has it."""
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
