"""Pitfall 18: whoever dies is replaced, whoever lives is not, and whoever was replaced by mistake stops writing."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from tiny_claims import owner, take_within, write_claim

from pipeline.store import lease as module
from pipeline.store.lease import CLAIMS, ClaimLostError, Lease


@pytest.fixture(params=[True, False], ids=["local", "nfs"])
def can_exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the file system can exchange two names; filelock takes over nothing where it cannot."""
    if not request.param:
        monkeypatch.setattr("filelock._soft._exclusive._recovery.exchange_names", lambda *_: False)


@pytest.fixture
def lease(tmp_path: Path) -> Lease:
    return Lease(tmp_path / "work", "a", 0.8)


def test_one_of_two_takes_it_until_it_is_released(tmp_path: Path, lease: Lease) -> None:
    other = Lease(tmp_path / "work", "a", 0.8)
    assert (lease.take(), other.take(), lease.is_lost) == (True, False, False)
    assert [path.name for path in (tmp_path / CLAIMS).iterdir()] == ["work.a.lock"]
    lease.release()
    assert other.take()
    other.release()
    assert list(tmp_path.iterdir()) == []


def test_a_claim_taken_in_one_thread_is_released_in_another(lease: Lease) -> None:
    thread = threading.Thread(target=lease.take)
    thread.start()
    thread.join()
    assert lease.path.is_file() and not lease.is_lost
    lease.release()
    assert not lease.path.exists()


def test_the_holder_says_who_and_where(lease: Lease) -> None:
    assert lease.holder is None
    write_claim(lease)
    holder = lease.holder
    assert holder is not None and (holder.pid, holder.host, holder.is_here) == (7, "elsewhere", False)
    lease.path.unlink()
    assert lease.take()
    holder = lease.holder
    assert holder is not None and (holder.pid, holder.is_here) == (os.getpid(), True)
    assert holder.host == socket.gethostname()
    lease.release()


@pytest.mark.usefixtures("can_exchange")
def test_an_owner_killed_on_this_host_is_replaced_at_once(tmp_path: Path) -> None:
    lease = Lease(tmp_path / "work", "a", 120.0)
    with owner(lease) as pid:
        assert not lease.take()
        os.kill(pid, signal.SIGKILL)  # nobody asks for its exit code before the end of the block
        taken = take_within(lease, 5)
    assert taken is not None and taken < 1
    lease.release()


@pytest.mark.parametrize("shift", [-1000.0, 1000.0])
def test_an_owner_on_another_host_lives_while_its_claim_changes(lease: Lease, shift: float) -> None:
    """The other host's clock is wrong by ``shift`` seconds, which says nothing of its age."""
    path, stop = write_claim(lease), threading.Event()

    def beat() -> None:
        while not stop.wait(0.1):
            os.utime(path, (time.time() + shift,) * 2)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        assert take_within(lease, 1.5) is None
    finally:
        stop.set()
        thread.join()


@pytest.mark.usefixtures("can_exchange")
@pytest.mark.parametrize("shift", [-1000.0, 1000.0])
def test_an_owner_on_another_host_is_replaced_after_the_lease(lease: Lease, shift: float) -> None:
    os.utime(write_claim(lease), (time.time() + shift,) * 2)
    taken = take_within(lease, 5)
    assert taken is not None and 0.8 <= taken < 2
    lease.release()
    assert not lease.path.parent.exists()


def test_a_clock_that_is_set_kills_no_owner(
    lease: Lease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with owner(Lease(tmp_path / "work", "a", 0.8)):
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 1000)
        assert take_within(lease, 1.5) is None


@pytest.mark.usefixtures("can_exchange")
@pytest.mark.parametrize("length", [0, 20, 100])
def test_a_cut_claim_is_taken_over(lease: Lease, length: int) -> None:
    """A power cut leaves the file's name without its contents, or with a part of them."""
    path = write_claim(lease)
    path.write_bytes(path.read_bytes()[:length])
    assert take_within(lease, 5) is not None
    assert not lease.is_lost
    lease.release()


def test_a_successor_is_not_removed_for_its_dead_predecessor(
    tmp_path: Path, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes see the same dead claim; the slower one must not remove what the faster one has made."""
    write_claim(lease)
    slow = Lease(tmp_path / "work", "a", 0.8)
    assert not slow.take()
    assert take_within(lease, 5) is not None
    monkeypatch.setattr(slow, "_is_dead", lambda: True)  # it decided so before the other one took the claim
    assert not slow.take() and not lease.is_lost
    lease.release()


def test_an_owner_that_stood_still_learns_that_it_lost(tmp_path: Path, lease: Lease) -> None:
    other = Lease(tmp_path / "work", "a", 0.8)
    assert lease.take()
    lease._lock._stop_heartbeat()  # as SIGSTOP does
    assert take_within(other, 5) is not None
    assert lease.is_lost and not other.is_lost
    with pytest.raises(ClaimLostError) as error:
        lease.check()
    assert str(lease.path) in str(error.value) and f"process {os.getpid()}" in str(error.value)
    lease.release()
    assert not other.is_lost, "the claim of the other process stays"
    other.release()


def test_a_claim_that_somebody_removed_is_lost(lease: Lease) -> None:
    assert lease.take()
    lease.path.unlink()
    assert lease.is_lost
    lease.release()


def test_the_claim_is_kept_alive(lease: Lease) -> None:
    assert lease.take()
    os.utime(lease.path, (0, 0))
    time.sleep(0.3)
    assert lease.path.stat().st_mtime > 0
    lease.release()


def test_the_lease_is_two_minutes(tmp_path: Path) -> None:
    assert (module.LEASE_SECONDS, Lease(tmp_path, "a").seconds) == (120.0, 120.0)
