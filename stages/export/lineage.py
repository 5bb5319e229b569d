"""What an export says about where the draft came from: references, fingerprints and versions, no path of a machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_specs.manifest import Manifest, read_json
from pipeline.artifacts import Artifact, Store, git_revision, package_versions
from pipeline.target_files import HUB_ID, cache_home
from stages.export.capabilities import ExportError

SEARCHED_BYTES = 1 << 24  # of every file; a machine's paths stand in headers and in text


@dataclass(frozen=True)
class Target:
    """What is known of a draft's target; ``architectures``: of its config.json, where that is at hand."""

    name: str
    hub_id: str | None = None
    revision: str | None = None
    architectures: list[str] = field(default_factory=list)

    @property
    def shown(self) -> str:
        """As it stands in commands."""
        return self.hub_id or "TARGET"


def ancestors(store: Store, draft: Artifact | Path) -> dict[str, Manifest]:
    """Manifests of the draft and of what it was made from, by kind, as far as they are in ``store``."""
    found: dict[str, Manifest] = {}
    waiting = [draft.manifest] if isinstance(draft, Artifact) else []
    while waiting:
        manifest = waiting.pop()
        found.setdefault(manifest.kind, manifest)
        for kind, fingerprint in manifest.parents.items():
            if (parent := store.find(kind, fingerprint)) is not None and kind not in found:
                waiting.append(parent.manifest)
    return found


def known_target(manifests: dict[str, Manifest], told: str | None) -> Target:
    """The target of the draft's lineage; ``told``: its Hub id, where the draft was trained from a folder."""
    section = manifests["draft"].config.get("target", {}) if "draft" in manifests else {}
    path = told or str(section.get("path") or "")
    hub_id = path if HUB_ID.fullmatch(path) and "/" in path and not Path(path).is_dir() else None
    name = str(section.get("name") or (hub_id or Path(path).name or "target").rpartition("/")[2])
    architectures = _architectures(hub_id or path, section)
    return Target(name, hub_id, section.get("revision"), architectures)


def _architectures(path: str, section: dict[str, Any]) -> list[str]:
    """``architectures`` of the target's config.json, if that lies on this machine; nothing is downloaded."""
    places = [Path(path)] if path and Path(path).is_dir() else []
    if section.get("package"):
        places.append(cache_home() / "targets" / str(section.get("name")))
    if path and not places:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(path, "config.json", revision=section.get("revision"))
        places += [Path(cached).parent] if isinstance(cached, str) else []
    for place in places:
        if (place / "config.json").is_file():
            return list(read_json(place / "config.json").get("architectures") or [])
    return []


def provenance(
    draft: Artifact | Path, made_of: str, manifests: dict[str, Manifest], target: Target
) -> dict[str, Any]:
    """Contents of provenance.json."""
    cache = manifests["cache"].config if "cache" in manifests else {}
    reference = draft.reference if isinstance(draft, Artifact) else draft.resolve().name
    return {
        "draft": {"reference": reference, "fingerprint": made_of},
        "ancestors": {
            kind: {
                "reference": f"{m.name}:{m.version}",
                "fingerprint": m.fingerprint,
                "created": m.created,
                "packages": m.packages,
                "revision": m.revision,
                "counts": m.counts,
            }
            for kind, m in sorted(manifests.items())
        },
        "target": {
            "name": target.name,
            "hub_id": target.hub_id,
            "revision": target.revision,
            "identity": cache.get("target", {}).get("identity"),
            "tokenizer": cache.get("target", {}).get("tokenizer"),
        },
        "exported_with": {"packages": package_versions(), "revision": git_revision()},
    }


def machine_paths(*more: str | Path | None) -> list[bytes]:
    """Paths of this machine that no export may hold: home, the working folder, and ``more``."""
    paths = {os.getcwd(), *(str(p) for p in more if p), *(str(Path(p).resolve()) for p in more if p)}
    with suppress(RuntimeError):  # a user without a home
        paths.add(str(Path.home()))
    return sorted({p.encode() for p in paths if Path(p).is_absolute() and len(p) > 1})


def check_no_paths(folder: Path, paths: Iterable[bytes]) -> None:
    """Raise ``ExportError`` naming the file in ``folder`` that holds one of ``paths``."""
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        head = _text_of(file)
        for path in paths:
            if path in head:
                raise ExportError(f"{file.name}: holds the path {path.decode()} of this machine")


def _text_of(file: Path) -> bytes:
    """What of ``file`` may hold a path: the header of safetensors, the beginning of everything else."""
    with file.open("rb") as handle:
        if file.suffix == ".safetensors":
            return handle.read(int.from_bytes(handle.read(8), "little"))
        return handle.read(SEARCHED_BYTES)
