"""The manifest of an artifact: what it is, what it was made from, and how to tell that it is whole.

An artifact is a folder with ``manifest.json``. The manifest is written last and the folder is committed
by rename, so a folder without a manifest does not exist for any reader.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data_specs.errors import UserError
from data_specs.files import written_whole

MANIFEST = "manifest.json"
KINDS = ("answers", "cache", "draft", "evaluation", "study", "comparison", "report", "export")


class ManifestError(UserError):
    """A folder that is no artifact, or whose contents are not those that its manifest names."""


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes and SHA-256 of one file of an artifact."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Contents of ``manifest.json``; see the module's docstring.

    ``fingerprint`` identifies the inputs and the configuration that made the artifact (equal fingerprint:
    nothing to do again). ``parents`` maps a role (``answers``, ``cache``, ``draft``) to the fingerprint of
    the artifact read. ``files`` maps a path relative to the folder to its record.
    """

    kind: str
    name: str
    version: str
    schema_version: int
    fingerprint: str
    parents: dict[str, str]
    config: Mapping[str, Any]
    counts: Mapping[str, Any]
    packages: dict[str, str]
    revision: str | None
    created: str
    files: dict[str, FileRecord] = field(default_factory=dict)


def canonical(value: Any) -> str:
    """JSON text of ``value`` with sorted keys: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def fingerprint(*parts: Any) -> str:
    """SHA-256 over the canonical JSON of ``parts`` (hex, 64 characters)."""
    return hashlib.sha256(canonical(parts).encode()).hexdigest()


def file_record(path: Path) -> FileRecord:
    """Size and SHA-256 of the file at ``path``."""
    with path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    return FileRecord(path.stat().st_size, digest)


def folder_records(folder: Path, patterns: tuple[str, ...] = ("**/*",)) -> dict[str, FileRecord]:
    """Records of every file below ``folder`` that matches one of ``patterns`` (the manifest left out)."""
    paths = {path for pattern in patterns for path in folder.glob(pattern)}
    files = sorted(path for path in paths if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(folder).as_posix(): file_record(path) for path in files}


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON so that ``path`` holds either the old or the whole new text."""
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False))


def read_json(path: Path) -> Any:
    """Parse the JSON file at ``path``; a ``ManifestError`` names the file when it is absent or damaged."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise ManifestError(f"{path}: expected a JSON file, found none") from None
    except ValueError as error:
        raise ManifestError(f"{path}: expected JSON, got: {error}") from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``manifest.json`` into ``folder``, whole or not at all, with a digest over its own fields."""
    values = asdict(manifest)
    write_json(folder / MANIFEST, values | {"digest": fingerprint(values)})


def read_manifest(folder: Path) -> Manifest:
    """Read and check ``manifest.json`` of ``folder``; errors name the file and the field, or say that it was edited."""
    path = folder / MANIFEST
    value = read_json(path)
    names = {*Manifest.__dataclass_fields__, "digest"}
    if not isinstance(value, dict) or set(value) != names:
        got = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise ManifestError(f"{path}: expected the fields {sorted(names)}, got {got}")
    if value["kind"] not in KINDS:
        raise ManifestError(f"{path}: field kind: expected one of {KINDS}, got {value['kind']!r}")
    digest = value.pop("digest")
    if digest != fingerprint(value):
        raise ManifestError(
            f"{path}: the fields do not match the digest written with them: the file was edited"
        )
    value["files"] = {name: FileRecord(**record) for name, record in value["files"].items()}
    return Manifest(**value)


def verify_files(folder: Path, files: dict[str, FileRecord]) -> None:
    """Check that every file of ``files`` is there and unchanged; ``ManifestError`` names the first that is not."""
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise ManifestError(f"{path}: named in the manifest, but missing")
        size = path.stat().st_size
        if size != expected.size:
            raise ManifestError(f"{path}: expected {expected.size} bytes, got {size}")
        got = file_record(path).sha256
        if got != expected.sha256:
            raise ManifestError(
                f"{path}: expected sha256 {expected.sha256[:12]}..., got {got[:12]}...: damaged"
            )
