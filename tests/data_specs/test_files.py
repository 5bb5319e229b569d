"""What is written survives a power cut: contents are synced before a name is given, and the name is synced after."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from data_specs.files import free_bytes, rename_synced, written_whole
from data_specs.manifest import MANIFEST, Manifest, write_json, write_manifest
from data_specs.parquet import write_table
from pipeline.store.artifacts import Store
from pipeline.store.work import publish_folder
from stages.train.checkpoints import COMPLETE, CheckpointLayout, begin, complete
from stages.train.record import Record

Steps = list[tuple[str, str]]


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Every sync and rename in its order: the path below ``tmp_path``, temporary names as ``*.tmp``."""
    made: Steps = []
    fsync, replace = os.fsync, os.replace

    def named(path: str | Path) -> str:
        path = Path(path)
        if path.suffix == ".tmp":
            path = path.with_name("*.tmp")
        return path.relative_to(tmp_path).as_posix()

    def recorded_fsync(handle: int) -> None:
        made.append(("sync", named(os.readlink(f"/proc/self/fd/{handle}"))))
        fsync(handle)

    def recorded_replace(source: Path, target: Path) -> None:
        replace(source, target)
        made.append(("rename", named(target)))

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    monkeypatch.setattr(os, "rename", recorded_replace)
    return made


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_table(path, pa.table({"a": [1]})),
        lambda path: write_json(path, {"a": 1}),
        lambda path: Record(path).rewind(0),
    ],
    ids=["parquet", "json", "record"],
)
def test_a_file_is_synced_before_and_its_folder_after_the_rename(
    tmp_path: Path, steps: Steps, write: Callable[[Path], None]
) -> None:
    write(tmp_path / "file")
    assert steps == [("sync", "*.tmp"), ("rename", "file"), ("sync", ".")]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_manifest_is_synced_before_and_its_folder_after_the_rename(tmp_path: Path, steps: Steps) -> None:
    write_manifest(tmp_path, Manifest("draft", "d", "v0", 1, "f" * 64, {}, {}, {}, {}, None, "2026-01-01"))
    assert steps == [("sync", "*.tmp"), ("rename", MANIFEST), ("sync", ".")]


def folder_with_files(folder: Path) -> Path:
    (folder / "inner").mkdir(parents=True)
    (folder / "a").write_text("1")
    (folder / "inner/b").write_text("2")
    return folder


@pytest.mark.parametrize("rename", [rename_synced, publish_folder])
def test_a_folder_is_synced_with_all_below_it_before_the_rename(
    tmp_path: Path, steps: Steps, rename: Callable[[Path, Path], None]
) -> None:
    rename(folder_with_files(tmp_path / "partial"), tmp_path / "folder")
    before, after = steps[: steps.index(("rename", "folder"))], steps[-2:]
    assert sorted(before) == [("sync", f"partial{name}") for name in ("", "/a", "/inner", "/inner/b")]
    assert after == [("rename", "folder"), ("sync", ".")]


def test_an_artifact_is_synced_with_its_manifest_before_the_commit(tmp_path: Path, steps: Steps) -> None:
    work = Store(tmp_path).begin("draft", "d", 1, "f" * 64, {}, {})
    folder_with_files(work.path / "best")
    Store(tmp_path).commit(work, {})
    partial, renamed = work.path.relative_to(tmp_path).as_posix(), steps.index(("rename", "draft/d/v0"))
    synced = {path for kind, path in steps[:renamed] if kind == "sync"}
    assert synced >= {f"{partial}{name}" for name in ("", f"/{MANIFEST}", "/best/a", "/best/inner/b")}
    assert steps[renamed + 1 :] == [("sync", "draft/d")]


def test_a_checkpoint_is_synced_before_it_gets_its_name(tmp_path: Path, steps: Steps) -> None:
    (begin(tmp_path, 4) / "optimizer").write_text("state")
    complete(tmp_path, 4, CheckpointLayout(1, 0, ["w"]))
    renamed = steps.index(("rename", "step-00000004"))
    synced = {path for kind, path in steps[:renamed] if kind == "sync"}
    assert synced >= {f".partial-00000004{name}" for name in ("", "/optimizer", f"/{COMPLETE}")}
    assert steps[renamed + 1 :] == [("sync", ".")]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(OSError), written_whole(tmp_path / "file") as temporary:
        temporary.write_text("ne")
        raise OSError
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]


def test_the_free_bytes_of_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    """They are those of the disk that will hold it."""
    assert abs(free_bytes(tmp_path / "a" / "b") - shutil.disk_usage(tmp_path).free) < 2**30
