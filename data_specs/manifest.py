"""The manifest of an artifact: what it is, what it was made from, and how to check that it is whole.

An artifact is a folder with ``manifest.json``. The manifest is written last and the folder is committed by rename, so
no reader regards a folder without a manifest as an artifact.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data_specs.errors import UserError
from data_specs.files import written_whole

MANIFEST = "manifest.json"
# Kind -> the newest schema version that this version of draftline reads.
VERSIONS = {
    "answers": 1, "cache": 1, "draft": 1, "evaluation": 1, "study": 2, "comparison": 1, "report": 1, "export": 1,
}  # fmt: skip
_whole: set[tuple[Path, int, int, str]] = set()  # files whose digests this process has seen to be right


class ManifestError(UserError):
    """A folder is no artifact, or its contents differ from its manifest."""


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes and SHA-256 of one file of an artifact."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Contents of ``manifest.json``.

    ``fingerprint`` identifies the inputs and the configuration; an artifact with the same fingerprint is reused.
    ``parents`` maps a role (``answers``, ``cache``, ``draft``) to the fingerprint of the artifact that was read.
    ``files`` maps a path relative to the folder to its record.
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
    """JSON text of ``value`` with sorted keys, so that equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def fingerprint(*parts: Any) -> str:
    """SHA-256 (64 hex digits) over the canonical JSON of ``parts``."""
    return hashlib.sha256(canonical(parts).encode()).hexdigest()


def file_record(path: Path) -> FileRecord:
    """Size and SHA-256 of the file at ``path``."""
    with path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    return FileRecord(path.stat().st_size, digest)


def folder_records(folder: Path, patterns: tuple[str, ...] = ("**/*",)) -> dict[str, FileRecord]:
    """Records of the files below ``folder`` that match one of ``patterns``, without the manifest."""
    paths = {path for pattern in patterns for path in folder.glob(pattern)}
    files = sorted(path for path in paths if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(folder).as_posix(): file_record(path) for path in files}


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON; at any moment, ``path`` holds the whole old or the whole new text."""
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False))


def read_json(path: Path) -> Any:
    """Parse the JSON file at ``path``. Raises ``ManifestError`` naming the file if it cannot be read or parsed."""
    try:
        if not path.is_file():  # a pipe, for example, would be waited for
            raise ManifestError(f"{path}: expected a JSON file, found none")
        return json.loads(path.read_text())
    except ManifestError:  # it is a ValueError
        raise
    except (OSError, RecursionError, ValueError) as error:
        raise ManifestError(f"{path}: expected JSON, got: {error}") from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``manifest.json`` into ``folder``, whole or not at all, with a digest of its own fields."""
    values = asdict(manifest)
    write_json(folder / MANIFEST, values | {"digest": fingerprint(values)})


def read_manifest(folder: Path) -> Manifest:
    """Read and check ``manifest.json`` of ``folder``.

    Raises ``ManifestError`` naming the file and the field, or saying that the file was edited.
    """
    path = folder / MANIFEST
    value = read_json(path)
    names = {*Manifest.__dataclass_fields__, "digest"}
    if not isinstance(value, dict) or set(value) != names:
        got = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise ManifestError(f"{path}: expected the fields {sorted(names)}, got {got}")
    if value["kind"] not in VERSIONS:
        raise ManifestError(f"{path}: field kind: expected one of {sorted(VERSIONS)}, got {value['kind']!r}")
    digest = value.pop("digest")
    if digest != fingerprint(value):
        raise ManifestError(f"{path}: the fields do not match their digest, so the file was edited")
    newest = VERSIONS[value["kind"]]
    if value["schema_version"] not in range(1, newest + 1):
        raise ManifestError(
            f"{path}: field schema_version: expected at most {newest}, got {value['schema_version']!r}: another "
            "version of draftline made this artifact, and that version reads it"
        )
    value["files"] = {name: FileRecord(**record) for name, record in value["files"].items()}
    return Manifest(**value)


def verify_files(
    folder: Path, files: Mapping[str, FileRecord], digests: bool = True, beside: Collection[str] = ()
) -> None:
    """Check that ``folder`` holds exactly ``files``, unchanged, and perhaps those ``beside`` them.

    Without ``digests`` only names and sizes are compared. Hidden files are of the file system or of a tool and do not
    count. Raises ``ManifestError`` that names the first file that is missing, damaged or not in the manifest.
    """
    for name, expected in files.items():
        _verify_file(folder / name, expected, digests)
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("[!.]*") if path.is_file()}
    if unknown := sorted(there - set(files) - {MANIFEST, *beside}):
        raise ManifestError(
            f"{folder / unknown[0]}: not in the manifest: somebody put it there after the commit; remove it"
        )


def _verify_file(path: Path, expected: FileRecord, digests: bool) -> None:
    if not path.is_file():
        raise ManifestError(f"{path}: named in the manifest, but missing")
    status = path.stat()
    if status.st_size != expected.size:
        raise ManifestError(f"{path}: expected {expected.size} bytes, got {status.st_size}")
    seen = (path.absolute(), status.st_size, status.st_mtime_ns, expected.sha256)
    if not digests or seen in _whole:
        return
    got = file_record(path).sha256
    if got != expected.sha256:
        raise ManifestError(f"{path}: expected sha256 {expected.sha256[:12]}..., got {got[:12]}...: damaged")
    _whole.add(seen)
