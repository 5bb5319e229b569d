import json
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline.store import work as module
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.work import CLAIMS, Owner, WorkShare, begin_once, commit_once, publish_folder

SPAWN = multiprocessing.get_context("spawn")


def share_of(folder: Path, units: list[str], stale_after: float = 120.0) -> WorkShare:
    return WorkShare(folder, units, lambda unit: (folder / unit).is_file(), stale_after)


def finish(folder: Path, unit: str) -> None:
    """Commit a unit, and put down that it was made once more."""
    with (folder / "made.log").open("a") as log:
        log.write(f"{unit}\n")
    partial = folder / f".{unit}.{os.getpid()}"
    partial.write_text(unit)
    partial.rename(folder / unit)


def work_through(folder: str, units: list[str], rank: int, ranks: int) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    for unit in share_of(Path(folder), units):
        time.sleep(0.02)
        finish(Path(folder), unit)
    missing = [unit for unit in units if not (Path(folder) / unit).is_file()]
    assert not missing, f"the loop of rank {rank} ended before {missing} were done"


def claim(folder: Path, name: str, owner: Owner) -> Path:
    path = folder / CLAIMS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(vars(owner)))
    return path


def dead_owner() -> Owner:
    process = subprocess.Popen([sys.executable, "-c", ""])
    me = Owner.me()
    process.wait()
    return Owner(me.host, process.pid, me.started)


def test_one_process_gets_every_unit_once_and_leaves_no_claim(tmp_path: Path) -> None:
    share = share_of(tmp_path, ["a", "b", "c"])
    seen = []
    for unit in share:
        seen.append(unit)
        finish(tmp_path, unit)
    assert seen == ["a", "b", "c"]
    assert (share.done, share.remaining) == (3, [])
    assert list((tmp_path / CLAIMS).iterdir()) == []


def test_finished_units_are_not_made_again(tmp_path: Path) -> None:
    """Pitfall 21."""
    finish(tmp_path, "b")
    share = share_of(tmp_path, ["a", "b", "c"])
    assert (share.done, share.remaining) == (1, ["a", "c"])
    for unit in share:
        finish(tmp_path, unit)
    assert (tmp_path / "made.log").read_text().split() == ["b", "a", "c"]


def test_three_processes_make_every_unit_exactly_once(tmp_path: Path) -> None:
    """Pitfall 18: no unit has two writers, none is lost; every loop is a barrier."""
    units = [f"u{i:02d}" for i in range(12)]
    ranks = [SPAWN.Process(target=work_through, args=(str(tmp_path), units, rank, 3)) for rank in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0, 0, 0]
    assert sorted((tmp_path / "made.log").read_text().split()) == units


def test_a_live_claim_is_respected_until_its_owner_is_done(tmp_path: Path) -> None:
    held = claim(tmp_path, "a@0", Owner.me())
    made = []

    def other() -> None:
        for unit in share_of(tmp_path, ["a", "b"]):
            made.append(unit)
            finish(tmp_path, unit)

    thread = threading.Thread(target=other)
    thread.start()
    time.sleep(0.3)
    assert made == ["b"]
    assert thread.is_alive()
    finish(tmp_path, "a")
    held.unlink()
    thread.join(10)
    assert made == ["b"]


def test_the_claim_of_a_dead_process_is_taken_over_at_once(tmp_path: Path) -> None:
    claim(tmp_path, "a@0", dead_owner())
    started = time.monotonic()
    for unit in share_of(tmp_path, ["a"]):
        finish(tmp_path, unit)
    assert (tmp_path / "a").read_text() == "a"
    assert time.monotonic() - started < 5
    assert list((tmp_path / CLAIMS).iterdir()) == []


def test_a_process_id_that_was_given_away_again_is_dead(tmp_path: Path) -> None:
    me = Owner.me()
    claim(tmp_path, "a@0", Owner(me.host, me.pid, me.started - 1000.0))
    assert list(_make(tmp_path, ["a"])) == ["a"]


def test_another_hosts_claim_is_taken_over_when_its_heartbeat_is_stale(tmp_path: Path) -> None:
    path = claim(tmp_path, "a@0", Owner("elsewhere/1", 1, 0.0))
    os.utime(path, (time.time() - 300, time.time() - 300))
    assert list(_make(tmp_path, ["a"], stale_after=120.0)) == ["a"]


def test_another_hosts_claim_with_a_heartbeat_is_left_alone(tmp_path: Path) -> None:
    claim(tmp_path, "a@0", Owner("elsewhere/1", 1, 0.0))
    share = share_of(tmp_path, ["a"], stale_after=120.0)
    assert share._claim("a") is None


def test_the_heartbeat_moves_while_a_unit_is_worked_on(tmp_path: Path) -> None:
    share = share_of(tmp_path, ["a"], stale_after=0.4)
    for unit in share:
        path = tmp_path / CLAIMS / "a@0"
        os.utime(path, (0, 0))
        time.sleep(0.3)
        assert path.stat().st_mtime > 0
        finish(tmp_path, unit)


def test_an_error_releases_the_claim(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        for _ in share_of(tmp_path, ["a"]):
            raise RuntimeError
    assert list(_make(tmp_path, ["a"])) == ["a"]


def test_the_loop_ends_when_the_folder_was_committed_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "partial"
    folder.mkdir()
    claim(folder, "a@0", Owner("elsewhere/1", 1, 0.0))
    thread = threading.Thread(target=lambda: list(share_of(folder, ["a"])), daemon=True)
    thread.start()
    time.sleep(0.2)
    folder.rename(tmp_path / "v0")
    thread.join(10)
    assert not thread.is_alive(), "it waits for a folder that is not there any more"
    assert not folder.exists(), "it made the folder anew"


def test_a_body_that_does_not_commit_its_unit_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="unit a: "):
        list(share_of(tmp_path, ["a"]))


def test_a_unit_that_cannot_be_a_file_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'a/b'"):
        WorkShare(tmp_path, ["a/b"], lambda _: False)


def commit_in(root: str) -> None:
    store = Store(root)
    work = store.begin("cache", "tiny", 1, "f" * 64, {}, {})
    commit_once(store, work, lambda: {"by": os.getpid()})


def test_three_processes_commit_one_artifact(tmp_path: Path) -> None:
    (tmp_path / "cache/tiny/.partial-ffffffffffffffff").mkdir(parents=True)
    (tmp_path / "cache/tiny/.partial-ffffffffffffffff/data").write_text("x")
    ranks = [SPAWN.Process(target=commit_in, args=(str(tmp_path),)) for _ in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0, 0, 0]
    found = Store(tmp_path).list("cache")
    assert [artifact.reference for artifact in found] == ["tiny:v0"]
    assert list(found[0].manifest.files) == ["data"]


def test_publishing_twice_leaves_one_whole_folder(tmp_path: Path) -> None:
    """Pitfall 18: a stalled writer that wakes up does no harm."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data").write_text("same")
    publish_folder(tmp_path / "first", tmp_path / "unit")
    publish_folder(tmp_path / "second", tmp_path / "unit")
    assert [path.name for path in tmp_path.iterdir()] == ["unit"]
    assert (tmp_path / "unit/data").read_text() == "same"


def _make(folder: Path, units: list[str], stale_after: float = 120.0) -> list[str]:
    made = []
    for unit in share_of(folder, units, stale_after):
        made.append(unit)
        finish(folder, unit)
    return made


def test_a_folder_in_the_place_of_the_renamed_one_is_not_worked_in(tmp_path: Path) -> None:
    """Pitfall 18: a late rank has begun anew under the name of what was committed."""
    folder = tmp_path / "partial"
    folder.mkdir()
    share = share_of(folder, ["a", "b"])
    assert share.remaining == ["a", "b"]
    folder.rename(tmp_path / "v0")
    folder.mkdir()
    assert share_of(folder, ["a"]).remaining == ["a"]
    assert list(share) == [] and list(folder.iterdir()) == []


def test_begin_looks_again_and_leaves_no_folder(tmp_path: Path) -> None:
    store, inputs = Store(tmp_path), ("cache", "tiny", 1, "f" * 64, {}, {})
    work = begin_once(store, *inputs)
    assert not isinstance(work, Artifact)
    artifact = commit_once(store, work, dict)
    assert begin_once(store, *inputs) == artifact
    assert [path.name for path in artifact.path.parent.iterdir()] == ["v0"]
    work.path.mkdir()
    (work.path / "orphan").write_text("x")
    assert commit_once(store, work, dict) == artifact
    assert [path.name for path in artifact.path.parent.iterdir()] == ["v0"]


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        (Owner.me(), f"process {os.getpid()} on .*as soon as that process ends"),
        (Owner("elsewhere/1", 7, 0.0), "process 7 on elsewhere: taken over after 2 min 00 s without"),
    ],
)
def test_a_long_wait_is_explained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Owner, expected: str
) -> None:
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.1)
    said: list[str] = []
    monkeypatch.setattr(module, "say", said.append)
    claim(tmp_path, "a@0", owner)
    thread = threading.Thread(target=lambda: list(share_of(tmp_path, ["a"])))
    thread.start()
    time.sleep(0.8)
    finish(tmp_path, "a")
    thread.join(10)
    assert len(said) == 1 and re.search(f"unit a .*{expected}", said[0])
