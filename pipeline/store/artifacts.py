"""Versioned artifacts on disk: find, resolve, resume and commit them.

artifacts/<kind>/<name>/v0/manifest.json ...      committed; it never changes again
artifacts/<kind>/<name>/.partial-<fingerprint>/   unfinished; a rerun with the same inputs continues in it
"""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from data_specs.calibration import CALIBRATION
from data_specs.errors import UserError
from data_specs.files import rename_synced
from data_specs.manifest import (
    MANIFEST,
    Manifest,
    ManifestError,
    folder_records,
    read_manifest,
    verify_files,
    write_manifest,
)
from pipeline import console
from pipeline.config.rules import SAFE_NAME

PACKAGES = ("torch", "transformers", "deepspeed", "datasets", "zarr", "pyarrow", "numpy")


class ArtifactError(UserError):
    """A reference names no artifact, or one of another kind."""


@dataclass(frozen=True)
class Artifact:
    """A committed artifact: its folder and its manifest."""

    path: Path
    manifest: Manifest

    @property
    def reference(self) -> str:
        """``name:version``, as a user may type it."""
        return f"{self.manifest.name}:{self.manifest.version}"

    def verify(self) -> Artifact:
        """This artifact, after its files were compared with the manifest.

        Raises ``ManifestError`` that names the first file that is damaged, missing or unknown. Of a cache, which may
        have terabytes, only names and sizes are compared: training reads the digests too (``train.verify``).
        """
        # Earlier versions kept a draft's calibration beside it.
        beside = [CALIBRATION] if self.manifest.kind == "draft" else []
        verify_files(self.path, self.manifest.files, self.manifest.kind != "cache", beside)
        return self


@dataclass(frozen=True)
class Work:
    """An unfinished artifact: the folder to write to, and what its manifest will say."""

    kind: str
    name: str
    schema_version: int
    fingerprint: str
    parents: dict[str, str]
    config: Mapping[str, object]
    path: Path


class Store:
    """All artifacts below one root folder."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def list(self, kind: str | None = None) -> list[Artifact]:
        """Committed artifacts (of ``kind``), by kind, name and version number.

        An artifact with a damaged manifest is reported and skipped, because it must not stop work on the others.
        """
        found = []
        for manifest in self.root.glob(f"{kind or '*'}/*/v*/{MANIFEST}"):
            try:
                found.append(Artifact(manifest.parent, read_manifest(manifest.parent)))
            except ManifestError as error:
                console.say(f"skipped: {error}")
        return sorted(found, key=lambda a: (a.manifest.kind, a.manifest.name, _number(a.path)))

    def find(self, kind: str, fingerprint: str) -> Artifact | None:
        """The committed artifact of ``kind`` that these inputs made, verified, or None; errors as of ``verify``."""
        matches = [a for a in self.list(kind) if a.manifest.fingerprint == fingerprint]
        return matches[-1].verify() if matches else None

    def resolve(self, kind: str, reference: str) -> Artifact:
        """The artifact that ``reference`` names: ``name``, ``name:latest``, ``name:v3`` or a folder.

        It is verified. Raises ``ArtifactError`` with the artifacts that exist if none matches, and as ``verify`` does.
        """
        folder = Path(reference)
        if (folder / MANIFEST).is_file():
            manifest = read_manifest(folder)
            if manifest.kind != kind:
                raise ArtifactError(f"{folder}: expected an artifact of kind {kind}, got {manifest.kind}")
            return Artifact(folder, manifest).verify()
        name, _, version = reference.partition(":")
        candidates = [a for a in self.list(kind) if a.manifest.name == name]
        if version not in ("", "latest"):
            candidates = [a for a in candidates if a.manifest.version == version]
        if not candidates:
            there = ", ".join(a.reference for a in self.list(kind)) or "none"
            raise ArtifactError(
                f"{kind}={reference}: no such {kind} under {self.root}, nor a folder with {MANIFEST}; found: {there}"
            )
        return candidates[-1].verify()

    def work_folder(self, kind: str, name: str, fingerprint: str) -> Path:
        """The folder in which the artifact of these inputs is made before its commit."""
        if not SAFE_NAME.fullmatch(name):
            raise ArtifactError(f"artifact name {name!r}: expected letters, digits, dot, dash or underscore")
        return self.root / kind / name / f".partial-{fingerprint[:16]}"

    def begin(
        self, kind: str, name: str, schema_version: int, fingerprint: str, parents: dict[str, str],
        config: Mapping[str, object],
    ) -> Work:  # fmt: skip
        """The working folder for these inputs: that of an interrupted run, or a new one."""
        path = self.work_folder(kind, name, fingerprint)
        path.mkdir(parents=True, exist_ok=True)
        return Work(kind, name, schema_version, fingerprint, parents, config, path)

    def commit(
        self, work: Work, counts: Mapping[str, object], files: tuple[str, ...] = ("**/*",),
        check: Callable[[], None] = lambda: None,
    ) -> Artifact:  # fmt: skip
        """Write the manifest, with records of all files that match ``files``, and rename the folder to its version.

        ``check`` is called just before the rename and can prevent it by raising an error.
        """
        parent = work.path.parent
        for leftover in work.path.glob("**/.*.tmp"):  # from a process that was killed while writing
            leftover.unlink()
        while True:
            version = f"v{max((_number(path) for path in parent.glob('v*')), default=-1) + 1}"
            manifest = Manifest(
                work.kind, work.name, version, work.schema_version, work.fingerprint, work.parents, work.config, counts,
                packages=package_versions(), revision=git_revision(),
                created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                files=folder_records(work.path, files),
            )  # fmt: skip
            write_manifest(work.path, manifest)
            check()
            try:
                rename_synced(work.path, parent / version)
            except OSError:
                if not (parent / version).exists():
                    raise
                continue  # another process took this version number in the meantime
            return Artifact(parent / version, manifest)


def package_versions() -> dict[str, str]:
    """Versions of the packages that affect the figures."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


@functools.cache
def git_revision() -> str | None:
    """The commit of the running checkout, or None outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _number(path: Path) -> int:
    digits = path.name.removeprefix("v")
    return int(digits) if digits.isdigit() else -1
