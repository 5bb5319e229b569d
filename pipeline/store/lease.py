"""The claim of one process on a piece of work in a shared folder. Others take it over when that process dies.

A claim is a ``SoftFileLease`` of filelock: a file that its owner touches every eighth of the lease. If the owner ran on
this host and has ended, another process takes over at once. Otherwise it first sees no change for a whole lease, by its
own monotonic clock, because the clocks of two hosts may differ and may be set.

filelock leaves three gaps, which this module closes by removing the claim of a dead owner: it takes over nothing on a
file system that cannot exchange two names (NFS); it waits forever for an empty file, which a power cut may leave; and
it waits for the whole lease if the owner has ended but its parent has not asked for its exit code.

An owner that stood still for longer than the lease (SIGSTOP, a hanging file server) is not told that it has lost its
claim. It must check (``is_lost``, ``check``) before it writes anything that only the owner may write.
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
DAMAGED_SECONDS = 2.0  # an unreadable claim is being written before, and abandoned after
FIRST_NAMESPACE = 0xEFFFFFFC  # inode of Linux's initial PID namespace, which filelock's host names omit


class ClaimLostError(UserError):
    """This process stood still for longer than the lease, so another process took over its work."""


@dataclass(frozen=True)
class Holder:
    """The process that holds a claim; ``beat`` changes as long as it is alive."""

    pid: int
    host: str
    is_here: bool  # on this host, in this PID namespace
    beat: tuple[str | None, int]

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Lease:
    """A claim on ``unit`` of ``folder``, not taken yet.

    Keep the object to watch the claim of another process, because it remembers what it has seen. All processes must
    use the same ``seconds``.
    """

    def __init__(self, folder: Path, unit: str, seconds: float | None = None) -> None:
        self.path = folder.parent / CLAIMS / f"{folder.name}.{unit}.lock"
        self.seconds = LEASE_SECONDS if seconds is None else seconds
        # A run of several ranks takes its claim in one thread and releases it in another.
        self._lock = SoftFileLease(
            self.path, lease_duration=self.seconds, heartbeat_interval=self.seconds / 8, blocking=False,
            thread_local=False,
        )  # fmt: skip
        self._seen: tuple[bytes, int] | None = None  # another process's claim when we last looked
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
        """Give up the claim, unless another process has taken it over."""
        self._lock.release()
        with suppress(OSError):  # the folder still holds other claims
            self.path.parent.rmdir()

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken over this process's claim."""
        try:
            return f"token={self._lock.token}\n" not in self.path.read_text(errors="replace")
        except FileNotFoundError:
            return True

    def check(self) -> None:
        """Raise ``ClaimLostError`` if another process has taken over."""
        if self.is_lost:
            raise ClaimLostError(
                f"{self.path}: this process stood still for more than {duration(self.seconds)}, so "
                f"{self.holder or 'another process'} has taken over its work; this process ends and changes no files"
            )

    @property
    def holder(self) -> Holder | None:
        """The process that holds the claim; None if nobody does, or if the claim cannot be read."""
        owner = self._lock.owner
        with suppress(FileNotFoundError):
            if owner is not None:
                host = owner.hostname.partition("?")[0]
                return Holder(owner.pid, host, _is_here(owner), (owner.token, self.path.stat().st_mtime_ns))
        return None

    def _remove_dead_claim(self) -> None:
        """Remove a dead owner's claim. Only one process at a time does so, or it might remove the successor's claim."""
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
        """The claim's contents and the time of its last sign of life; None if there is no claim."""
        with suppress(FileNotFoundError):
            return self.path.read_bytes(), self.path.stat().st_mtime_ns
        return None


def _is_here(owner: OwnerRecord) -> bool:
    """Whether the owner's process id is valid here. filelock's host names contain the PID namespace."""
    namespace = Path("/proc/self/ns/pid")
    inode = namespace.stat().st_ino if namespace.exists() else FIRST_NAMESPACE
    return owner.hostname == socket.gethostname() + (f"?pidns-{inode:x}" if inode != FIRST_NAMESPACE else "")


def _has_ended(owner: OwnerRecord) -> bool:
    """Whether the owner was a process on this host and has ended, even if its parent has not noticed yet."""
    try:
        return _is_here(owner) and psutil.Process(owner.pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
