"""What travels along with a draft: where it came from (no path of a machine) and its calibration.

What is known comes from the manifests of this machine's store and from the provenance.json that came with the draft
from an export made elsewhere.
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

SEARCHED_BYTES = 1 << 24  # of every file; a machine's paths stand in headers and in text


@dataclass(frozen=True)
class TargetFacts:
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
    """Manifests of the draft and of what it was made from, by kind; a folder's are in its provenance.json."""
    found = behind(store, draft) if isinstance(draft, Artifact) else {}
    return {kind: artifact.manifest for kind, artifact in found.items()}


def carried(folder: Path) -> dict[str, Any]:
    """provenance.json in the draft's ``folder``: an export, or the import of one; empty where it has none of ours."""
    said = read_json(folder / PROVENANCE) if (folder / PROVENANCE).is_file() else None
    if not isinstance(said, dict) or not isinstance(said.get("training"), dict | None):
        return {}
    sections = [said.get(name) for name in ("ancestors", "target", "exported_with")]
    return dict(said) if all(isinstance(section, dict) for section in sections) else {}


def known_target(manifests: dict[str, Manifest], earlier: dict[str, Any], told: str | None) -> TargetFacts:
    """The target of the draft's lineage; ``earlier``: see ``carried``; ``told``: its Hub id, or its folder here.

    The revision is the commit that was captured where the cache says it, else what the config asked for.
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
    """A section of the settings that the manifest of ``kind`` records; empty where that is not known."""
    return dict(manifests[kind].config.get(section) or {}) if kind in manifests else {}


def _architectures(path: str, section: dict[str, Any]) -> list[str]:
    """``architectures`` of the target's config.json, if that lies on this machine; nothing is downloaded."""
    places = [Path(path)] if path and Path(path).is_dir() else []
    if section.get("package"):
        places.append(cache_home() / "targets" / str(section.get("name")))
    if not places and HUB_ID.fullmatch(path):  # a folder that is gone is no repository
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(path, "config.json", revision=section.get("revision"))
        places += [Path(cached).parent] if isinstance(cached, str) else []
    for place in places:
        if (place / "config.json").is_file():
            return list(read_json(place / "config.json").get("architectures") or [])
    return []


def provenance(
    draft: Artifact | Path,
    made_of: str,
    manifests: dict[str, Manifest],
    target: TargetFacts,
    earlier: dict[str, Any],
) -> dict[str, Any]:
    """Contents of provenance.json. What ``earlier`` says of ancestors stays: the draft there is the trained one."""
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
    """What the draft was trained on, None where its manifest does not say. ``max_length``: tokens a sample, at most."""
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
    """A source of prompts: a Hub data set as it is, of anything else its name only."""
    path = str(source.get("path"))
    hub = HUB_ID.fullmatch(path) and not path.endswith(FORMATS) and not Path(path).exists()
    revision = f" at {source['revision']}" if source.get("revision") else ""
    return f"{path if hub else Path(path).name}{revision}"


def calibration_of(folder: Path, drafts: int) -> Calibration | None:
    """The calibration of the draft that lies in ``folder`` (``drafts`` a block), None where it has none.

    Raises ``CalibrationFileError`` as ``read_calibration`` does, also for one that is another draft's.
    """
    if not (folder / CALIBRATION).is_file():
        return None
    return read_calibration(folder, draft_contents(folder), drafts)


def move_calibration(calibration: Calibration, folder: Path) -> None:
    """Write ``calibration`` into ``folder``, which holds its draft in another layout: now it is that of these files."""
    write_calibration(folder, replace(calibration, draft=draft_contents(folder)))


def machine_paths(manifests: dict[str, Manifest], *more: str | Path | None) -> list[bytes]:
    """Paths of this machine that no export may hold.

    Home, the working folder, draftline's and the Hub's cache, every absolute path that the lineage's manifests name
    (target, prompts, store), and ``more``.
    """
    from huggingface_hub import constants

    named = [text for m in manifests.values() for text in _texts(m.config) if text.startswith(("/", "~/"))]
    given = [os.getcwd(), constants.HF_HOME, constants.HF_HUB_CACHE, *named, *(str(p) for p in more if p)]
    with suppress(RuntimeError):  # a user without a home
        given.append(str(Path.home()))
    with suppress(ConfigError):  # the same
        given.append(str(cache_home()))
    paths = {str(form) for p in given for form in (Path(p), Path(p).expanduser(), Path(p).resolve())}
    return sorted({p.encode() for p in paths if Path(p).is_absolute() and len(p) > 1})


def _texts(value: Any) -> Iterator[str]:
    """Every string inside a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def check_no_paths(folder: Path, paths: Iterable[bytes]) -> None:
    """Raise ``ExportError`` naming the file in ``folder`` that holds one of ``paths``.

    As a whole path: a home in /data is not in org/data or /dataset.
    """
    wanted = re.compile(rb"(?<![\w.-])(" + b"|".join(map(re.escape, paths)) + rb")(?![\w-])")
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        if found := wanted.search(_text_of(file)):
            raise ExportError(f"{file.name}: holds the path {found[1].decode()} of this machine")


def _text_of(file: Path) -> bytes:
    """What of ``file`` may hold a path: the header of safetensors, the beginning of everything else."""
    with file.open("rb") as handle:
        if file.suffix == ".safetensors":
            return handle.read(int.from_bytes(handle.read(8), "little"))
        return handle.read(SEARCHED_BYTES)
