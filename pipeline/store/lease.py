"""The claim of one process on a piece of work in a shared folder, which others take over when it dies.

It is a ``SoftFileLease`` of filelock: a file that its owner touches every eighth of the lease. Another process
takes it over at once if the owner ran on this host and has ended, and otherwise after watching it for a whole
lease without a change, by its own monotonic clock: the clocks of two hosts may differ, and may be set.

filelock leaves three gaps, closed here. It waits forever for an empty file (a power cut leaves those), and for
a process that has ended while its parent has not asked for its exit code. And an owner that stood still for
longer than the lease (SIGSTOP, a file server that hung) is not told that it has lost its claim: it has to look
(``is_lost``, ``check``) before it writes what only the owner may write.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import OwnerRecord, SoftFileLease, Timeout

from data_specs.errors import UserError
from pipeline.console import duration

CLAIMS = ".claims"  # beside the folder that is worked in, so that no artifact holds a claim
LEASE_SECONDS = 120.0
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

    def take(self) -> bool:
        """Take the claim and keep it alive from now on; False if another process holds it."""
        self._expose_dead_owner()
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

    def _expose_dead_owner(self) -> None:
        """Append what makes filelock take over the claim of a dead owner; it harms no claim made meanwhile."""
        owner = self._lock.owner
        with suppress(OSError):
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND)
            try:
                content = os.read(handle, 4096)
                if not content:
                    os.write(handle, b"\n")  # damaged instead of empty: taken over after two seconds
                elif owner is not None and f"token={owner.token}\n".encode() in content and _is_zombie(owner):
                    os.write(handle, b"start=0\n")  # a start time that no process has: taken over at once
            finally:
                os.close(handle)


def _is_here(owner: OwnerRecord) -> bool:
    """Whether the owner's process id means something here. filelock's host names hold the PID namespace."""
    namespace = Path("/proc/self/ns/pid")
    inode = namespace.stat().st_ino if namespace.exists() else FIRST_NAMESPACE
    return owner.hostname == socket.gethostname() + (f"?pidns-{inode:x}" if inode != FIRST_NAMESPACE else "")


def _is_zombie(owner: OwnerRecord) -> bool:
    """Whether the owner has ended on this host and its parent has not asked for its exit code."""
    try:
        return _is_here(owner) and psutil.Process(owner.pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
