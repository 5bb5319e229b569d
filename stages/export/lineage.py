"""The provenance (without paths of a machine) and the calibration of an exported draft.

The provenance comes from the manifests of this machine's store and the provenance.json of an export made elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from data_specs.calibration import (
    CALIBRATION,
    Calibration,
    draft_contents,
    read_calibration,
    write_calibration,
)
from data_specs.export import PROVENANCE
from data_specs.manifest import Manifest, read_json
from pipeline.config import ConfigError
from pipeline.prompts.sources import FORMATS
from pipeline.store.artifacts import Artifact, Store, git_revision, package_versions
from pipeline.store.lineage import behind
from pipeline.target.conversion import cache_home
from pipeline.target.location import HUB_ID
from stages.export.capabilities import ExportError

SEARCHED_BYTES = 1 << 24  # of every file, because only headers and text contain a machine's paths


@dataclass(frozen=True)
class TargetFacts:
    """What is known about a draft's target. ``architectures`` is that of its config.json, if it is on this machine."""

    name: str
    hub_id: str | None = None
    revision: str | None = None
    architectures: list[str] = field(default_factory=list)

    @property
    def shown(self) -> str:
        """The target's name in commands."""
        return self.hub_id or "TARGET"


def ancestors(store: Store, draft: Artifact | Path) -> dict[str, Manifest]:
    """The manifests of the draft and its ancestors, by kind. A folder has none here; it may have a provenance.json."""
    found = behind(store, draft) if isinstance(draft, Artifact) else {}
    return {kind: artifact.manifest for kind, artifact in found.items()}


def carried(folder: Path) -> dict[str, Any]:
    """The provenance.json in the draft's ``folder``, which an export or its import has; empty if it is not ours."""
    said = read_json(folder / PROVENANCE) if (folder / PROVENANCE).is_file() else None
    if not isinstance(said, dict) or not isinstance(said.get("training"), dict | None):
        return {}
    sections = [said.get(name) for name in ("ancestors", "target", "exported_with")]
    return dict(said) if all(isinstance(section, dict) for section in sections) else {}


def known_target(manifests: dict[str, Manifest], earlier: dict[str, Any], told: str | None) -> TargetFacts:
    """The target of the draft. ``carried`` describes ``earlier``; ``told`` is the target's Hub id or its folder here.

    The revision is the captured commit if the cache records it, else the one in the config.
    """
    section, before = _config(manifests, "draft", "target"), earlier.get("target", {})
    trained_on = str(section.get("path") or before.get("hub_id") or "")
    here = told is not None and Path(told).expanduser().is_dir()
    path = trained_on if told is None or here else told
    is_hub = HUB_ID.fullmatch(path) and "/" in path and not Path(path).is_dir() and not section.get("adapter")
    hub_id = path if is_hub else None  # a target with an adapter is another model than its base on the Hub
    named = section.get("name") or before.get("name") or Path(hub_id or told or path).name
    commit = _config(manifests, "cache", "target").get("commit")
    revision = commit or section.get("revision") or before.get("revision")
    return TargetFacts(
        str(named) if HUB_ID.fullmatch(str(named)) else "target",
        hub_id,
        revision if path == trained_on else None,
        _architectures(told or path, section),
    )


def _config(manifests: dict[str, Manifest], kind: str, section: str) -> dict[str, Any]:
    """A section of the settings in the manifest of ``kind``; empty if there is none."""
    return dict(manifests[kind].config.get(section) or {}) if kind in manifests else {}


def _architectures(path: str, section: dict[str, Any]) -> list[str]:
    """``architectures`` of the target's config.json, if that is on this machine. Nothing is downloaded."""
    places = [Path(path)] if path and Path(path).is_dir() else []
    if section.get("package"):
        places.append(cache_home() / "targets" / str(section.get("name")))
    if not places and HUB_ID.fullmatch(path):  # the path of a removed folder is no Hub id
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(path, "config.json", revision=section.get("revision"))
        places += [Path(cached).parent] if isinstance(cached, str) else []
    for place in places:
        if (place / "config.json").is_file():
            return list(read_json(place / "config.json").get("architectures") or [])
    return []


def provenance(
    draft: Artifact | Path, made_of: str, manifests: dict[str, Manifest], target: TargetFacts, earlier: dict[str, Any]
) -> dict[str, Any]:  # fmt: skip
    """The contents of provenance.json. Ancestors in ``earlier`` are kept, because they include the trained draft."""
    reference = draft.reference if isinstance(draft, Artifact) else draft.resolve().name
    captured, before = _config(manifests, "cache", "target"), earlier.get("target", {})
    return {
        "draft": {"reference": reference, "fingerprint": made_of},
        "ancestors": {kind: _ancestor(m) for kind, m in manifests.items()} | earlier.get("ancestors", {}),
        "target": {
            "name": target.name,
            "hub_id": target.hub_id,
            "revision": target.revision,
            "identity": captured.get("identity", before.get("identity")),
            "tokenizer": captured.get("tokenizer", before.get("tokenizer")),
        },
        "training": _training(manifests) or earlier.get("training"),
        "exported_with": {"packages": package_versions(), "revision": git_revision()},
    }


def _ancestor(manifest: Manifest) -> dict[str, Any]:
    told = ("fingerprint", "created", "packages", "revision", "counts")
    return {"reference": f"{manifest.name}:{manifest.version}"} | {n: getattr(manifest, n) for n in told}


def _training(manifests: dict[str, Manifest]) -> dict[str, Any] | None:
    """What the draft was trained on; None if its manifest lacks it. ``max_length`` is in tokens per sample."""
    data = _config(manifests, "draft", "data")
    if not data:
        return None
    return {
        "data": data.get("name"),
        "sources": [public(source) for source in data.get("sources", [])],
        "thinking": _config(manifests, "draft", "target").get("thinking"),
        "max_length": _config(manifests, "cache", "capture").get("max_length"),
    }


def public(source: dict[str, Any]) -> str:
    """The public name of a source of prompts: the id of a Hub data set, or else only the file's name."""
    path = str(source.get("path"))
    hub = HUB_ID.fullmatch(path) and not path.endswith(FORMATS) and not Path(path).exists()
    revision = f" at {source['revision']}" if source.get("revision") else ""
    return f"{path if hub else Path(path).name}{revision}"


def calibration_of(folder: Path, drafts: int) -> Calibration | None:
    """The calibration of the draft in ``folder``, which has ``drafts`` drafts per block; None if it has none.

    Raises ``CalibrationFileError`` as ``read_calibration`` does, also for the calibration of another draft.
    """
    if not (folder / CALIBRATION).is_file():
        return None
    return read_calibration(folder, draft_contents(folder), drafts)


def move_calibration(calibration: Calibration, folder: Path) -> None:
    """Write ``calibration`` into ``folder``, which contains the draft in another layout, with the new fingerprint."""
    write_calibration(folder, replace(calibration, draft=draft_contents(folder)))


def machine_paths(manifests: dict[str, Manifest], *more: str | Path | None) -> list[bytes]:
    """Paths of this machine that no export may contain.

    These are the home and the working folder, the caches of draftline and the Hub, all absolute paths in the lineage's
    manifests (target, prompts, store), and ``more``.
    """
    from huggingface_hub import constants

    named = [text for m in manifests.values() for text in _texts(m.config) if text.startswith(("/", "~/"))]
    given = [os.getcwd(), constants.HF_HOME, constants.HF_HUB_CACHE, *named, *(str(p) for p in more if p)]
    with suppress(RuntimeError):  # a user without a home
        given.append(str(Path.home()))
    with suppress(ConfigError):
        given.append(str(cache_home()))
    paths = {str(form) for p in given for form in (Path(p), Path(p).expanduser(), Path(p).resolve())}
    return sorted({p.encode() for p in paths if Path(p).is_absolute() and len(p) > 1})


def _texts(value: Any) -> Iterator[str]:
    """All strings in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def check_no_paths(folder: Path, paths: Iterable[bytes]) -> None:
    """Raise ``ExportError`` with the file in ``folder`` that contains one of ``paths``.

    Only whole paths count: /data is not part of org/data or /dataset. The header of safetensors and the beginning of
    all other files are searched.
    """
    wanted = re.compile(rb"(?<![\w.-])(" + b"|".join(map(re.escape, paths)) + rb")(?![\w-])")
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        with file.open("rb") as handle:
            size = SEARCHED_BYTES
            if file.suffix == ".safetensors":
                size = int.from_bytes(handle.read(8), "little")
            if found := wanted.search(handle.read(size)):
                raise ExportError(f"{file.name}: contains the path {found[1].decode()} of this machine")
