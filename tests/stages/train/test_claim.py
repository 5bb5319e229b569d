"""Two runs of one training must not share a work folder: the second is refused while the first is alive."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_cache
from tiny_claims import write_claim

from pipeline.store import lease as module
from pipeline.store.lease import ClaimLostError, Lease
from stages.train import loop
from stages.train.claim import BusyError, sole_run


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims are taken without a process group, by the only rank."""
    monkeypatch.setenv("WORLD_SIZE", "1")


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def steps_of(artifacts: Path) -> list[int]:
    """Steps in the record of the only training, those of kind train, in the file's order."""
    (record,) = [
        *artifacts.glob("draft/*/.partial-*/metrics.jsonl"),
        *artifacts.glob("draft/*/v0/metrics.jsonl"),
    ]
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    return [line["step"] for line in lines if line["kind"] == "train"]


def test_a_second_run_is_refused_and_a_killed_one_is_taken_over(cached) -> None:
    config = cached.config(steps=2000, evaluate_every=2000, checkpoint_every=2000)
    process = tiny_cache.Process(config)
    records = "draft/*/.partial-*/metrics.jsonl"
    wait_for(lambda: list(cached.store.root.glob(records)), "the first run did not begin")
    with pytest.raises(BusyError) as error:
        loop.run_train(config, cached.store, cached.cache)
    assert f"process {process.pid} on " in str(error.value)
    os.kill(process.pid, signal.SIGKILL)
    killed = time.monotonic()
    (record,) = cached.store.root.glob(records)
    lease = Lease(record.parent, "run")
    wait_for(lease.take, "the claim of the killed run was not taken over")
    assert time.monotonic() - killed < 1
    lease.release()
    assert process.wait() == -signal.SIGKILL


def test_a_run_that_stood_still_writes_nothing_beside_the_one_that_took_over(cached) -> None:
    """SIGSTOP for longer than the lease, another host takes over, SIGCONT: no step stands twice in the record."""
    root = cached.store.root
    config = cached.config(steps=150, evaluate_every=150, checkpoint_every=5)
    first = tiny_cache.Process(config, TINY_HOST="one", TINY_LEASE="1.5")
    wait_for(
        lambda: list(root.glob("draft/*/.partial-*/run/checkpoints/step-*")), "no checkpoint was written"
    )
    os.kill(first.pid, signal.SIGSTOP)
    (work,) = root.glob("draft/*/.partial-*")
    second = tiny_cache.Process(config, TINY_HOST="two", TINY_LEASE="1.5")
    lease = Lease(work, "run")
    wait_for(lambda: (holder := lease.holder) and holder.host == "two", "the second did not take over")
    reached = len(steps_of(root))
    wait_for(lambda: len(steps_of(root)) > reached, "the second run does not go on")
    os.kill(first.pid, signal.SIGCONT)
    assert first.wait() == 1
    assert second.wait() == 0
    assert steps_of(root) == list(range(1, 151))


def test_the_claim_ends_with_the_run(cached) -> None:
    assert loop.run_train(cached.config(steps=1), cached.store, cached.cache) is not None
    assert sorted(path.name for path in (cached.store.root / "draft/tiny_dspark").iterdir()) == ["v0"]


def test_a_draft_that_another_run_has_just_committed_is_taken(
    cached, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was not there at the first look, but was when the claim became free."""
    config = cached.config(steps=1)
    made = loop.run_train(config, cached.store, cached.cache)
    answers = iter([None, made])
    monkeypatch.setattr(type(cached.store), "find", lambda *_: next(answers))
    monkeypatch.setattr(loop, "_train", lambda *_: pytest.fail("it trained again"))
    assert loop.run_train(config, cached.store, cached.cache) == made
    assert made.reference in capsys.readouterr().out


def test_a_run_that_lost_its_claim_ends_before_it_writes(cached, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is about to write: a line of the record, a checkpoint, the draft, the artifact."""
    config, checks = cached.config(steps=2, evaluate_every=2, checkpoint_every=1), []
    monkeypatch.setattr(Lease, "check", lambda self: checks.append(self.path.name))
    assert loop.run_train(config, cached.store, cached.cache) is not None
    for number in range(0, len(checks), 4):
        shutil.rmtree(cached.store.root / "draft")
        left = [number]

        def check(lease: Lease, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise ClaimLostError(f"{lease.path}")

        monkeypatch.setattr(Lease, "check", check)
        with pytest.raises(ClaimLostError):
            loop.run_train(config, cached.store, cached.cache)
        assert cached.store.list("draft") == []
    monkeypatch.undo()
    assert loop.run_train(config, cached.store, cached.cache) is not None
    assert steps_of(cached.store.root) == [1, 2]


def test_an_owner_on_another_host_lives_while_its_claim_changes(tmp_path: Path) -> None:
    claim, stop = write_claim(Lease(tmp_path / "work", "run")), threading.Event()

    def beat() -> None:
        while not stop.wait(0.2):
            os.utime(claim)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(BusyError) as error, sole_run(tmp_path / "work"):
            pass
    finally:
        stop.set()
        thread.join()
    assert "process 7 on elsewhere" in str(error.value)
    assert claim.is_file()


def test_an_owner_on_another_host_is_dead_without_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEASE_SECONDS", 0.5)
    write_claim(Lease(tmp_path / "work", "run"))
    with sole_run(tmp_path / "work") as claim:
        assert not claim.is_lost
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "filelock/2\npid=7\nho"])
def test_a_cut_claim_is_taken_over(tmp_path: Path, content: str) -> None:
    write_claim(Lease(tmp_path / "work", "run")).write_text(content)
    with sole_run(tmp_path / "work") as claim:
        assert not claim.is_lost
