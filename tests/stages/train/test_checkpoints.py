import os
from pathlib import Path

import pytest
from tiny_errors import refused

from pipeline.config import ConfigError
from stages.train.checkpoints import (
    COMPLETE,
    CheckpointLayout,
    begin,
    check_layout,
    check_trust,
    complete,
    complete_ones,
    newest,
    partial_folder,
    tidy,
)

LAYOUT = CheckpointLayout(world_size=2, stage=1, names=["a", "b"])


def write(folder: Path, step: int) -> Path:
    partial = begin(folder, step)
    (partial / "engine").mkdir()
    (partial / "engine" / "rank0.pt").write_bytes(b"0" * 10)
    (partial / "engine" / "rank1.pt").write_bytes(b"1" * 20)
    return complete(folder, step, LAYOUT).path


def test_the_newest_complete_checkpoint_is_found(tmp_path: Path) -> None:
    assert newest(tmp_path / "none") is None
    for step in (2, 10, 4):
        write(tmp_path, step)
    found = newest(tmp_path)
    assert found is not None
    assert (found.step, found.layout, found.path.name) == (10, LAYOUT, "step-00000010")


def test_an_unfinished_checkpoint_is_none(tmp_path: Path) -> None:
    """Pitfall 34: files that are there, but without the record that is written last."""
    write(tmp_path, 2)
    (begin(tmp_path, 4) / "rank0.pt").write_bytes(b"0")
    assert [checkpoint.step for checkpoint in complete_ones(tmp_path)] == [2]
    assert not list(begin(tmp_path, 4).iterdir())  # and it is not mixed with the next try


@pytest.mark.parametrize("damage", ["shorten", "remove", "record"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    """Pitfall 20: existence is not completion."""
    write(tmp_path, 2)
    path = write(tmp_path, 4)
    if damage == "shorten":
        (path / "engine" / "rank1.pt").write_bytes(b"1" * 19)
    elif damage == "remove":
        (path / "engine" / "rank0.pt").unlink()
    else:
        (path / COMPLETE).unlink()
    found = newest(tmp_path)
    assert found is not None
    assert found.step == 2


def test_tidy_keeps_the_newest(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write(tmp_path, step)
    begin(tmp_path, 9)
    assert [checkpoint.step for checkpoint in tidy(tmp_path, keep=2)] == [2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    assert [checkpoint.step for checkpoint in tidy(tmp_path, keep=0)] == [3]  # one always stays


def test_a_step_written_again_replaces_the_old_one(tmp_path: Path) -> None:
    write(tmp_path, 2)
    write(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
    assert not partial_folder(tmp_path, 2).exists()


@pytest.mark.parametrize(
    ("layout", "named"),
    [
        (CheckpointLayout(4, 1, ["a", "b"]), ["ranks=4", "ranks=2"]),
        (CheckpointLayout(2, 3, ["a", "b"]), ["deepspeed.stage=3", "deepspeed.stage=1"]),
        (CheckpointLayout(2, 1, ["a", "c"]), ["'b'", "'c'"]),
    ],
)
def test_another_layout_is_refused(tmp_path: Path, layout: CheckpointLayout, named: list[str]) -> None:
    """Pitfall 35."""
    write(tmp_path, 2)
    found = newest(tmp_path)
    assert found is not None
    check_layout(found, LAYOUT)
    with pytest.raises(ConfigError) as error:
        check_layout(found, layout)
    assert all(part in str(error.value) for part in [*named, str(found.path)])


def test_a_checkpoint_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = write(tmp_path / "run" / "checkpoints", 2)
    finally:
        os.umask(before)
    modes = {entry.name: entry.stat().st_mode & 0o777 for entry in [path.parent, path, *path.rglob("*")]}
    assert modes["checkpoints"] == modes["step-00000002"] == 0o700
    assert (modes["engine"], modes["rank0.pt"]) == (0o755, 0o644)
    found = newest(path.parent)
    assert found is not None
    check_trust(found)


@pytest.mark.parametrize("name", ["", "engine", "engine/rank0.pt", ".."])
def test_what_others_could_have_written_is_not_loaded(tmp_path: Path, name: str, monkeypatch) -> None:
    path = write(tmp_path / "checkpoints", 2)
    found = newest(path.parent)
    assert found is not None
    (path / name).chmod(0o777)
    with refused(ConfigError, (path / name) if name != ".." else path.parent, "chmod"):
        check_trust(found)


def test_a_checkpoint_of_another_user_or_behind_a_link_is_not_loaded(tmp_path: Path, monkeypatch) -> None:
    path = write(tmp_path / "checkpoints", 2)
    found = newest(path.parent)
    assert found is not None
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 4711)
        with refused(ConfigError, path.parent, 4711):
            check_trust(found)
    (path / "engine" / "rank0.pt").rename(tmp_path / "elsewhere.pt")
    (path / "engine" / "rank0.pt").symlink_to(tmp_path / "elsewhere.pt")
    with refused(ConfigError, path / "engine" / "rank0.pt"):
        check_trust(found)
