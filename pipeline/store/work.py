"""Units of work shared by processes on one or many hosts through a shared folder.

``<folder>/claims/<unit>@<n>`` says who works on a unit. A claim comes into being whole and once (a hard
link), and whoever finds its owner dead takes over by making claim n + 1, which again succeeds for one process
only. A claim is an economy, not a lock: the worker commits a unit by rename and its contents do not depend on
who made them, so that two writers of one unit (a stalled process wakes up) still end with one whole unit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from data_specs.files import rename_synced
from pipeline.console import duration, say
from pipeline.ranks import is_main
from pipeline.store.artifacts import Artifact, Store, Work

CLAIMS = "claims"
UNIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
POLL_SECONDS = (0.02, 1.0)  # first and longest pause while others work on all that is left
QUIET_SECONDS = 10.0  # of waiting for others, after which the user is told for whom
START_TOLERANCE = 2.0  # seconds; the clock that start times are derived from may be adjusted


@dataclass(frozen=True)
class Owner:
    """A process: its host (and PID namespace), its id, and when it started (seconds since the epoch)."""

    host: str
    pid: int
    started: float

    @classmethod
    def me(cls) -> Owner:
        """The process that runs this."""
        return cls(_host(), os.getpid(), psutil.Process().create_time())

    def is_gone(self) -> bool:
        """True when the process was on this host and has ended (False: it runs, or nobody here can tell)."""
        if self.host != _host():
            return False
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < START_TOLERANCE
            return not same or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True


class WorkShare:
    """Iterate over the units that fall to this process; ends when every unit is done, by whomever.

    ``units`` are names without slashes, the same in every process; ``is_done`` says whether a unit is
    committed. ``folder`` must be there: without it (or with another one in its place) all units count as
    done, because another process has renamed it to what all the units make. The body of the loop makes and
    commits the unit that it was given; its claim is released when the loop moves on or breaks off. An owner
    on another host counts as dead when its heartbeat is older than ``stale_after`` seconds. Because the loop
    ends only when all is done, it is a barrier as well. Raises ``ValueError`` for a name that cannot be a
    file's.
    """

    def __init__(
        self, folder: Path, units: Sequence[str], is_done: Callable[[str], bool], stale_after: float = 120.0
    ) -> None:
        for unit in units:
            if not UNIT.fullmatch(unit):
                raise ValueError(f"unit {unit!r}: expected letters, digits, dot, dash or underscore")
        self.folder, self.inode = folder, _inode(folder)
        self.claims = folder / CLAIMS
        self.units = list(units)
        self.is_done = is_done
        self.stale_after = stale_after
        self.owner = Owner.me()
        self._done: set[str] = set()
        self._waits_since: float | None = None
        self._said = False

    @property
    def is_gone(self) -> bool:
        """Whether the folder was renamed (it stays on the disk, so that its inode is nobody else's)."""
        return self.inode is None or _inode(self.folder) != self.inode

    @property
    def remaining(self) -> list[str]:
        """Units that nobody has committed yet."""
        if self.is_gone:
            self._done.update(self.units)
        for unit in self.units:
            if unit not in self._done and self.is_done(unit):
                self._done.add(unit)
        return [unit for unit in self.units if unit not in self._done]

    @property
    def done(self) -> int:
        """How many units are committed."""
        return len(self.units) - len(self.remaining)

    def __iter__(self) -> Iterator[str]:
        if self.remaining:
            with suppress(FileNotFoundError):  # renamed this very moment: nothing remains
                self.claims.mkdir(exist_ok=True)
        pause = POLL_SECONDS[0]
        while left := self.remaining:
            worked = False
            for unit in _rotated(left):
                try:
                    claim = None if self._is_done(unit) else self._claim(unit)
                except FileNotFoundError:  # the claims were cleared, or the folder renamed: all is done
                    return
                if claim is None:
                    continue
                with self._held(claim, unit):
                    if not self._is_done(unit):  # it may have been committed between the look and the claim
                        worked = True
                        yield unit
                self._check_done(unit)
            pause = POLL_SECONDS[0] if worked else min(2 * pause, POLL_SECONDS[1])
            self._tell_of_waiting(worked, left)
            if not worked:
                time.sleep(pause)

    def _is_done(self, unit: str) -> bool:
        return self.is_gone or self.is_done(unit)

    def _tell_of_waiting(self, worked: bool, left: list[str]) -> None:
        """Say once, after ``QUIET_SECONDS`` without work, who works on what this process waits for."""
        now = time.monotonic()
        if worked or self._waits_since is None:
            self._waits_since = None if worked else now
        elif not self._said and now - self._waits_since >= QUIET_SECONDS and is_main():
            claims = _claims_of(self.claims, left[0])
            if claims and (text := self._holder(claims[-1])):
                self._said = True
                say(f"waiting for unit {left[0]} ({len(left)} left), claimed by {text}".replace("[", r"\["))

    def _holder(self, claim: Path) -> str | None:
        """Who holds ``claim`` and when it would be taken over; None when it was released meanwhile."""
        try:
            owner, beat = Owner(**json.loads(claim.read_text())), claim.stat().st_mtime
        except FileNotFoundError:
            return None
        who = f"process {owner.pid} on {owner.host.partition('/')[0]}"
        if owner.host == self.owner.host:
            return f"{who}: taken over as soon as that process ends"
        silent, limit = duration(self._now() - beat), duration(self.stale_after)
        return f"{who}: taken over after {limit} without a heartbeat (the last was {silent} ago)"

    def _claim(self, unit: str) -> Path | None:
        """Make the next claim of ``unit`` unless a live process holds the present one."""
        held = _claims_of(self.claims, unit)
        if held and not self._is_dead(held[-1]):
            return None
        claim = self.claims / f"{unit}@{_number(held[-1]) + 1 if held else 0}"
        return claim if _publish(claim, asdict(self.owner)) else None

    def _check_done(self, unit: str) -> None:
        if not self._is_done(unit) and self.claims.is_dir():
            raise RuntimeError(f"unit {unit}: the body of the loop went on without committing it")

    def _is_dead(self, claim: Path) -> bool:
        try:
            owner = Owner(**json.loads(claim.read_text()))
            if owner.is_gone():
                return True
            return owner.host != self.owner.host and self._now() - claim.stat().st_mtime > self.stale_after
        except FileNotFoundError:  # released meanwhile; the next look finds out
            return False

    def _now(self) -> float:
        """The shared folder's own clock: hosts' clocks differ."""
        with tempfile.NamedTemporaryFile(dir=self.claims, prefix=".clock-") as probe:
            os.utime(probe.name)
            return os.stat(probe.name).st_mtime

    @contextmanager
    def _held(self, claim: Path, unit: str) -> Iterator[None]:
        """Keep the claim's heartbeat while the unit is worked on; then remove it and the dead ones before."""
        stop = threading.Event()
        beat = threading.Thread(target=_heartbeat, args=(claim, stop, self.stale_after / 8), daemon=True)
        beat.start()
        try:
            yield
        finally:
            stop.set()
            beat.join()
            for path in _claims_of(self.claims, unit):
                if _number(path) <= _number(claim):
                    path.unlink(missing_ok=True)


def begin_once(store: Store, *inputs: Any) -> Work | Artifact:
    """``store.begin(*inputs)``, or the artifact where another process has committed it in the meantime.

    Without the second look a late process would begin anew what has just been finished.
    """
    work = store.begin(*inputs)
    found = store.find(work.kind, work.fingerprint)
    if found is None:
        return work
    with suppress(OSError):  # gone already, or an older orphan: not this process's
        work.path.rmdir()
    return found


def commit_once(
    store: Store, work: Work, counts: Callable[[], dict[str, Any]], files: tuple[str, ...] = ("**/*",)
) -> Artifact:
    """Commit ``work`` by exactly one of the processes that reach this line, and return the artifact in all.

    ``counts`` is called by that one, just before the commit (it may write files that belong to the artifact).
    If it dies, another takes over. What a late process may have left under the working name is removed.
    """
    folder = work.path.with_name(f".commit-{work.fingerprint[:16]}")
    folder.mkdir(exist_ok=True)
    for _ in WorkShare(folder, ["commit"], lambda _: store.find(work.kind, work.fingerprint) is not None):
        shutil.rmtree(work.path / CLAIMS, ignore_errors=True)
        store.commit(work, counts(), files)
    shutil.rmtree(folder, ignore_errors=True)
    artifact = store.find(work.kind, work.fingerprint)
    assert artifact is not None, "the share ends only when the artifact is there"
    shutil.rmtree(work.path, ignore_errors=True)
    return artifact


def publish_folder(partial: Path, folder: Path) -> None:
    """Make ``partial`` appear as ``folder`` at once, and survive a power cut; a folder that is there already stays.

    Whoever publishes a unit second has made the same contents, and they are dropped.
    """
    try:
        rename_synced(partial, folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(partial)


def _inode(folder: Path) -> int | None:
    try:
        return folder.stat().st_ino
    except FileNotFoundError:
        return None


def _host() -> str:
    """Host name and PID namespace: a process id means something only inside both."""
    namespace = Path("/proc/self/ns/pid")
    return f"{socket.gethostname()}/{namespace.stat().st_ino if namespace.exists() else 0}"


def _rotated(units: list[str]) -> list[str]:
    """Each rank starts elsewhere, so that ranks seldom ask for the same unit."""
    offset = int(os.environ.get("RANK", "0")) * len(units) // max(1, int(os.environ.get("WORLD_SIZE", "1")))
    offset %= len(units)
    return units[offset:] + units[:offset]


def _number(claim: Path) -> int:
    return int(claim.name.rpartition("@")[2])


def _claims_of(folder: Path, unit: str) -> list[Path]:
    return sorted(folder.glob(f"{unit}@*"), key=_number)


def _publish(path: Path, value: dict[str, Any]) -> bool:
    """Make ``path`` with its whole content at once; False when it exists already."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".claim-") as handle:
        json.dump(value, handle)
        handle.flush()
        try:
            os.link(handle.name, path)
        except FileExistsError:
            return False
    return True


def _heartbeat(claim: Path, stop: threading.Event, period: float) -> None:
    while not stop.wait(period):
        with suppress(FileNotFoundError):
            os.utime(claim)
