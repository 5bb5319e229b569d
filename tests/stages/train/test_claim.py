"""Two runs of one training must not share a work folder: the second is refused while the first is alive."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import tiny_cache

from data_specs.manifest import fingerprint
from stages.train import loop, plan
from stages.train.claim import RUNNING, BusyError, RunClaim

PRINT = "ab" * 32


def claims(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / RUNNING / "claims").glob("*@*"))


def foreign_claim(folder: Path) -> Path:
    """A claim of process 7 on a host of which nothing is known but its heartbeat."""
    path = folder / RUNNING / "claims" / f"{PRINT[:16]}@0"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"host": "elsewhere/1", "pid": 7, "started": 0.0}))
    return path


def test_a_second_run_is_refused_and_a_killed_one_is_taken_over(cached) -> None:
    config = cached.config(steps=2000, evaluate_every=2000, checkpoint_every=2000)
    process = tiny_cache.Process(config)
    deadline = time.monotonic() + 60
    while not list(cached.store.root.glob("draft/*/.partial-*/metrics.jsonl")):
        assert time.monotonic() < deadline, "the first run did not begin"
        time.sleep(0.05)
    with pytest.raises(BusyError, match=rf"is being run by host [^ /]+, pid {process.pid} \("):
        loop.run_train(config, cached.store, cached.cache)
    process.process.kill()
    assert process.wait() == -signal.SIGKILL
    inputs = fingerprint(loop.SCHEMA_VERSION, plan.prepare(config, cached.cache).inputs)
    folder = cached.store.root / "draft" / "tiny_dspark"
    assert claims(folder) == [f"{inputs[:16]}@0"]
    with RunClaim(folder, inputs).held():
        assert claims(folder) == [f"{inputs[:16]}@0", f"{inputs[:16]}@1"]
    assert claims(folder) == []


def test_the_claim_ends_with_the_run(cached) -> None:
    assert loop.run_train(cached.config(steps=1), cached.store, cached.cache) is not None
    assert claims(cached.store.root / "draft" / "tiny_dspark") == []


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
    assert "already there" in capsys.readouterr().out


def test_an_owner_on_another_host_lives_while_its_heartbeat_moves(tmp_path: Path) -> None:
    claim, stop = foreign_claim(tmp_path), threading.Event()

    def beat() -> None:
        while not stop.wait(0.2):
            os.utime(claim)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(BusyError, match="host elsewhere, pid 7"), RunClaim(tmp_path, PRINT).held():
            pass
    finally:
        stop.set()
        thread.join()
    assert claims(tmp_path) == [claim.name]


def test_an_owner_on_another_host_is_dead_without_a_heartbeat(tmp_path: Path) -> None:
    foreign_claim(tmp_path)
    with RunClaim(tmp_path, PRINT, stale_after=0.5).held():
        assert claims(tmp_path) == [f"{PRINT[:16]}@{n}" for n in (0, 1)]
    assert claims(tmp_path) == []
