"""The claim of one process on a piece of work in a shared folder, which others take over when it dies.

It is a ``SoftFileLease`` of filelock: a file that its owner touches every eighth of the lease. Another process
takes it over at once if the owner ran on this host and has ended, and otherwise after watching it for a whole
lease without a change, by its own monotonic clock: the clocks of two hosts may differ, and may be set.

filelock leaves gaps that are closed here by removing the claim of a dead owner. It takes over nothing on a file
system that cannot exchange two names (NFS). It waits forever for an empty file, which a power cut may leave, and
for the whole lease if the owner has ended but its parent has not asked for its exit code.

An owner that stood still for longer than the lease (SIGSTOP, a file server that hung) is not told that it has
lost its claim: it has to look (``is_lost``, ``check``) before it writes what only the owner may write.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, OwnerRecord, SoftFileLease, Timeout

from data_specs.errors import UserError
from pipeline.console import duration

CLAIMS = ".claims"  # beside the folder that is worked in, so that no artifact holds a claim
LEASE_SECONDS = 120.0
DAMAGED_SECONDS = 2.0  # after which a claim that cannot be read counts as left behind, not as being written
FIRST_NAMESPACE = (
    0xEFFFFFFC  # the inode of Linux's initial PID namespace, which filelock's host names leave out
)


class ClaimLostError(UserError):
    """This process stood still for longer than the lease, and another one took over its work."""


@dataclass(frozen=True)
class Holder:
    """The process that holds a claim; ``beat`` changes while it is alive."""

    pid: int
    host: str
    is_here: bool  # on this host, in this PID namespace
    beat: tuple[str | None, int]

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Lease:
    """A claim on ``unit`` of ``folder``, not taken yet.

    To watch the claim of another process, keep the object: what it has seen is what it decides by. All
    processes must agree on ``seconds``.
    """

    def __init__(self, folder: Path, unit: str, seconds: float | None = None) -> None:
        self.path = folder.parent / CLAIMS / f"{folder.name}.{unit}.lock"
        self.seconds = LEASE_SECONDS if seconds is None else seconds
        # A run of several ranks takes its claim in one thread and releases it in another.
        self._lock = SoftFileLease(
            self.path,
            lease_duration=self.seconds,
            heartbeat_interval=self.seconds / 8,
            blocking=False,
            thread_local=False,
        )
        self._seen: tuple[bytes, int] | None = (
            None  # the claim of another process, as it was when last looked at
        )
        self._unchanged_since = 0.0

    def take(self) -> bool:
        """Take the claim and keep it alive from now on; False if another process holds it."""
        self._remove_dead_claim()
        while True:
            try:
                self._lock.acquire()
            except Timeout:
                return False
            except FileNotFoundError:  # another process has just removed the empty folder of claims
                continue
            return True

    def release(self) -> None:
        """Give up the claim; one that another process has taken over stays."""
        self._lock.release()
        with suppress(OSError):  # it holds other claims
            self.path.parent.rmdir()

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken over the claim that this one took."""
        try:
            return f"token={self._lock.token}\n" not in self.path.read_text(errors="replace")
        except FileNotFoundError:
            return True

    def check(self) -> None:
        """Raise ``ClaimLostError`` if another process has taken over."""
        if self.is_lost:
            raise ClaimLostError(
                f"{self.path}: this process stood still for more than {duration(self.seconds)}, and "
                f"{self.holder or 'another process'} has taken over its work: this one ends and leaves the files alone"
            )

    @property
    def holder(self) -> Holder | None:
        """The process that holds the claim; None if there is none, or it cannot be read."""
        owner = self._lock.owner
        with suppress(FileNotFoundError):
            if owner is not None:
                host = owner.hostname.partition("?")[0]
                return Holder(owner.pid, host, _is_here(owner), (owner.token, self.path.stat().st_mtime_ns))
        return None

    def _remove_dead_claim(self) -> None:
        """Remove the claim of a dead owner; one process does so at a time, else it might remove its successor's."""
        if self._is_dead():
            removal = self.path.with_suffix(".removal")
            with suppress(Timeout), FileLock(removal, blocking=False):
                if self._look() == self._seen:
                    self.path.unlink(missing_ok=True)
                removal.unlink(missing_ok=True)

    def _is_dead(self) -> bool:
        look, now = self._look(), time.monotonic()
        if look is None:
            return False
        if look != self._seen:
            self._seen, self._unchanged_since = look, now
        owner = self._lock.owner
        if owner is not None and _has_ended(owner):
            return True
        return now - self._unchanged_since >= (DAMAGED_SECONDS if owner is None else self.seconds)

    def _look(self) -> tuple[bytes, int] | None:
        """The claim's contents and the time of its last sign of life; None if nobody holds it."""
        with suppress(FileNotFoundError):
            return self.path.read_bytes(), self.path.stat().st_mtime_ns
        return None


def _is_here(owner: OwnerRecord) -> bool:
    """Whether the owner's process id means something here. filelock's host names hold the PID namespace."""
    namespace = Path("/proc/self/ns/pid")
    inode = namespace.stat().st_ino if namespace.exists() else FIRST_NAMESPACE
    return owner.hostname == socket.gethostname() + (f"?pidns-{inode:x}" if inode != FIRST_NAMESPACE else "")


def _has_ended(owner: OwnerRecord) -> bool:
    """Whether the owner was a process on this host and has ended (it may wait for its parent to notice)."""
    try:
        return _is_here(owner) and psutil.Process(owner.pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
