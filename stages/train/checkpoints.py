"""Checkpoints that exist as a whole or not at all, and the choice of the one that a run resumes from.

``checkpoints/step-00000040/`` holds DeepSpeed's files and ``complete.json`` (step, layout, sizes of all files), which
is written last, before a rename gives the folder its name (pitfalls 20, 34).
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from data_specs.files import rename_synced
from data_specs.manifest import read_json, write_json
from pipeline.config import ConfigError

COMPLETE = "complete.json"
PRIVATE = 0o700
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class CheckpointLayout:
    """The properties that a checkpoint and the run that loads it share, because the files are divided by them."""

    world_size: int
    stage: int
    names: list[str]  # trainable tensors


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint after ``step`` steps."""

    path: Path
    step: int
    layout: CheckpointLayout


def partial_folder(folder: Path, step: int) -> Path:
    """The folder of the checkpoint of ``step`` before it is complete."""
    return folder / f".partial-{step:08d}"


def begin(folder: Path, step: int) -> Path:
    """Make an empty ``partial_folder``; remove the files that a killed process left there."""
    path = partial_folder(folder, step)
    shutil.rmtree(path, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
    path.mkdir(mode=PRIVATE)
    return path


def complete(folder: Path, step: int, layout: CheckpointLayout) -> Checkpoint:
    """Turn ``partial_folder`` into a checkpoint after all ranks have written their parts."""
    partial, path = partial_folder(folder, step), folder / f"step-{step:08d}"
    written = sorted(file for file in partial.rglob("*") if file.is_file())
    files = {file.relative_to(partial).as_posix(): file.stat().st_size for file in written}
    write_json(partial / COMPLETE, {"step": step, "layout": asdict(layout), "files": files})
    for entry in partial.rglob("*"):  # check_trust requires this, whatever the umask is
        entry.chmod(entry.stat().st_mode & ~OTHERS_WRITE)
    remove(path)
    rename_synced(partial, path)
    return Checkpoint(path, step, layout)


def complete_ones(folder: Path) -> list[Checkpoint]:
    """The complete checkpoints in ``folder``, oldest first. One with a missing or short file does not count."""
    found = (_read(path) for path in sorted(folder.glob("step-*")))
    return [checkpoint for checkpoint in found if checkpoint is not None]


def remove(path: Path) -> None:
    """Remove a checkpoint. If this is interrupted, the rest counts as incomplete."""
    (path / COMPLETE).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def tidy(folder: Path, keep: int) -> list[Checkpoint]:
    """Remove all but the newest ``keep`` complete checkpoints, and return the kept ones."""
    kept = complete_ones(folder)[-max(1, keep) :]
    for path in folder.glob("*"):
        if path not in [checkpoint.path for checkpoint in kept]:
            remove(path)
    return kept


def check_trust(checkpoint: Checkpoint) -> None:
    """Raise ``ConfigError`` unless this user owns all of ``checkpoint`` and nobody else can write to it.

    DeepSpeed's files are pickles: loading one runs the code of whoever wrote it.
    """
    for path in [checkpoint.path.parent, checkpoint.path, *checkpoint.path.rglob("*")]:
        status = path.lstat()
        mine, open_to_others = status.st_uid == os.geteuid(), status.st_mode & OTHERS_WRITE
        if not mine or open_to_others or stat.S_ISLNK(status.st_mode):
            raise ConfigError(
                f"{path}: expected a file or folder of user {os.geteuid()} that nobody else can write, got owner "
                f"{status.st_uid} and mode {stat.filemode(status.st_mode)}: loading one runs code in it. If you "
                f"know that it is yours: chmod -R go-w {checkpoint.path.parent}; else remove {checkpoint.path}"
            )


def check_layout(checkpoint: Checkpoint, layout: CheckpointLayout) -> None:
    """Raise ``ConfigError`` unless ``checkpoint`` can be loaded with ``layout`` (pitfall 35)."""
    for key, had, has in (
        ("ranks", checkpoint.layout.world_size, layout.world_size),
        ("deepspeed.stage", checkpoint.layout.stage, layout.stage),
    ):
        if had != has:
            raise ConfigError(
                f"{key}={has}: the checkpoint to resume from was written with {key}={had}; use {key}={had}, "
                f"or remove {checkpoint.path} to start again"
            )
    if checkpoint.layout.names != layout.names:
        different = sorted(set(checkpoint.layout.names) ^ set(layout.names))[:5]
        raise ConfigError(f"{checkpoint.path}: was written for another draft; different tensors: {different}")


def _read(path: Path) -> Checkpoint | None:
    if not (path / COMPLETE).is_file():
        return None
    record = read_json(path / COMPLETE)
    sizes = {(path / name): size for name, size in record["files"].items()}
    if any(not file.is_file() or file.stat().st_size != size for file, size in sizes.items()):
        return None
    return Checkpoint(path, record["step"], CheckpointLayout(**record["layout"]))


def newest(folder: Path) -> Checkpoint | None:
    """The checkpoint that a run resumes from, or None."""
    return next(reversed(complete_ones(folder)), None)
