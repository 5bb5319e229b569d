import multiprocessing
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from tiny_claims import owner, write_claim

from pipeline.store import work as module
from pipeline.store.artifacts import Artifact, ArtifactError, Store
from pipeline.store.lease import CLAIMS, Lease
from pipeline.store.work import WorkShare, begin_once, commit_once, publish_folder

SPAWN = multiprocessing.get_context("spawn")


def share_of(folder: Path, units: list[str], lease: float = 120.0) -> WorkShare:
    return WorkShare(folder, units, lambda unit: (folder / unit).is_file(), lease)


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


def test_one_process_gets_every_unit_once_and_leaves_no_claim(tmp_path: Path) -> None:
    share = share_of(tmp_path, ["a", "b", "c"])
    seen = []
    for unit in share:
        seen.append(unit)
        finish(tmp_path, unit)
    assert seen == ["a", "b", "c"]
    assert (share.done, share.remaining) == (3, [])
    assert not (tmp_path.parent / CLAIMS).exists()


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


@pytest.mark.parametrize(("rank", "first"), [(0, "u0"), (1, "u2"), (2, "u4")])
def test_each_rank_starts_at_its_own_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, first: str
) -> None:
    """N31: ranks that start at the same unit stand in each other's way."""
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert next(iter(share_of(tmp_path, [f"u{i}" for i in range(6)]))) == first


def test_a_live_claim_is_respected_until_its_owner_is_done(tmp_path: Path) -> None:
    held, made = Lease(tmp_path, "a"), []
    assert held.take()

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
    held.release()
    thread.join(10)
    assert made == ["b"]


def test_a_unit_whose_owner_is_killed_is_made_by_another_at_once(tmp_path: Path) -> None:
    with owner(Lease(tmp_path, "a")) as pid:
        thread = threading.Thread(target=_make, args=(tmp_path, ["a"]))
        thread.start()
        time.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        thread.join(10)
    assert (tmp_path / "a").read_text() == "a"
    assert time.monotonic() - killed < 1


def test_a_unit_of_another_host_is_made_after_its_lease(tmp_path: Path) -> None:
    write_claim(Lease(tmp_path, "a", 0.5))
    began = time.monotonic()
    assert _make(tmp_path, ["a"], lease=0.5) == ["a"]
    assert time.monotonic() - began >= 0.5


def test_an_empty_claim_keeps_nobody_from_its_unit(tmp_path: Path) -> None:
    write_claim(Lease(tmp_path, "a")).write_text("")
    assert _make(tmp_path, ["a"]) == ["a"]


def test_a_unit_that_was_taken_over_is_lost_to_its_first_owner(tmp_path: Path) -> None:
    """The first one stood still for longer than the lease; it drops its work, without an error."""
    share, other, seen = share_of(tmp_path, ["a", "b"]), Lease(tmp_path, "a"), []
    for unit in share:
        seen.append((unit, share.is_lost))
        if unit == "a":
            other.path.unlink()
            assert other.take() and share.is_lost
            threading.Timer(0.5, lambda: (finish(tmp_path, "a"), other.release())).start()
        else:
            finish(tmp_path, unit)
    assert seen == [("a", False), ("b", False)]
    assert (tmp_path / "made.log").read_text().split() == ["b", "a"]


def test_an_error_releases_the_claim(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        for _ in share_of(tmp_path, ["a"]):
            raise RuntimeError
    assert list(_make(tmp_path, ["a"])) == ["a"]


def test_the_loop_ends_when_the_folder_was_committed_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "partial"
    folder.mkdir()
    write_claim(Lease(folder, "a"))
    thread = threading.Thread(target=lambda: list(share_of(folder, ["a"])), daemon=True)
    thread.start()
    time.sleep(0.2)
    folder.rename(tmp_path / "v0")
    thread.join(10)
    assert not thread.is_alive(), "it waits for a folder that is not there any more"
    assert not folder.exists(), "it made the folder anew"


def test_a_body_that_does_not_commit_its_unit_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as error:
        list(share_of(tmp_path, ["a"]))
    assert "unit a" in str(error.value)


def test_a_unit_that_cannot_be_a_file_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape("'a/b'")):
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


def _make(folder: Path, units: list[str], lease: float = 120.0) -> list[str]:
    made = []
    for unit in share_of(folder, units, lease):
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


def test_a_late_commit_is_dropped_quietly(tmp_path: Path) -> None:
    """This process stood still in the commit; another one has committed the same artifact meanwhile."""
    store = Store(tmp_path)
    work = store.begin("cache", "tiny", 1, "f" * 64, {}, {})

    def counts() -> dict[str, int]:
        Store(tmp_path).commit(work, {"by": 2})
        return {"by": 1}

    assert commit_once(store, work, counts).manifest.counts == {"by": 2}
    assert [artifact.reference for artifact in store.list("cache")] == ["tiny:v0"]


def test_a_commit_whose_claim_was_taken_over_is_left_to_the_other(tmp_path: Path) -> None:
    store = Store(tmp_path)
    work = store.begin("cache", "tiny", 1, "f" * 64, {}, {})

    def counts() -> dict[str, int]:
        lease = Lease(work.path, "commit")
        lease.path.unlink()
        other = Lease(work.path, "commit")
        assert other.take()
        threading.Timer(0.3, lambda: (store.commit(work, {"by": 2}), other.release())).start()
        return {"by": 1}

    assert commit_once(store, work, counts).manifest.counts == {"by": 2}


def test_a_working_folder_that_somebody_removed_is_named(tmp_path: Path) -> None:
    work = Store(tmp_path).begin("cache", "tiny", 1, "f" * 64, {}, {})
    work.path.rmdir()
    with pytest.raises(ArtifactError, match=re.escape(str(work.path))):
        commit_once(Store(tmp_path), work, dict)


@pytest.mark.parametrize("is_here", [True, False])
def test_a_long_wait_is_explained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_here: bool
) -> None:
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.1)
    said: list[str] = []
    monkeypatch.setattr(module, "say", said.append)
    held = Lease(tmp_path, "a")
    if is_here:
        assert held.take()
    else:
        write_claim(held)
    thread = threading.Thread(target=lambda: list(share_of(tmp_path, ["a"])))
    thread.start()
    time.sleep(0.8)
    finish(tmp_path, "a")
    thread.join(10)
    held.release()
    (message,) = said
    who = f"process {os.getpid()} on {socket.gethostname()}" if is_here else "process 7 on elsewhere"
    assert all(part in message for part in ("unit a ", who, "2 min 00 s"))
    assert ("as soon as that process ends" in message) == is_here
