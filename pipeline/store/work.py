"""Units of work shared by processes on one or many hosts through a shared folder.

Each process claims a unit (``lease.py``), makes it and commits it by a rename. A claim only avoids duplicate
work: the contents of a unit do not depend on who made it, so two writers of one unit (a process that stood
still wakes up) still leave one whole unit.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.markup import escape

from data_specs.files import rename_synced
from pipeline.console import duration, say
from pipeline.ranks import is_main, rank, world_size
from pipeline.store.artifacts import Artifact, ArtifactError, Store, Work
from pipeline.store.lease import ClaimLostError, Lease

UNIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
POLL_SECONDS = (0.02, 1.0)  # first and longest pause while others work on all that is left
QUIET_SECONDS = 10.0  # of waiting for others, after which the user is told for whom


class WorkShare:
    """Iterate over the units that fall to this process; the loop ends when every unit is done, by whomever.

    ``units`` are names without slashes, the same in every process; ``is_done`` says whether a unit is
    committed. If ``folder`` is gone or was replaced, another process has committed the artifact, so every unit
    counts as done. The body of the loop makes and commits the unit that it was given; if ``is_lost`` says that
    another process has taken the unit over meanwhile, the body drops what it made. The claim is released when
    the loop moves on or breaks off. The claim of a process that died is taken over: at once on its own host,
    elsewhere after ``lease_seconds``. Because the loop ends only when all is done, it is a barrier as well.
    Raises ``ValueError`` for a name that cannot be a file's.
    """

    def __init__(
        self,
        folder: Path,
        units: Sequence[str],
        is_done: Callable[[str], bool],
        lease_seconds: float | None = None,
    ) -> None:
        for unit in units:
            if not UNIT.fullmatch(unit):
                raise ValueError(f"unit {unit!r}: expected letters, digits, dot, dash or underscore")
        self.folder, self.inode = folder, _inode(folder)
        self.units = list(units)
        self.is_done = is_done
        self.lease_seconds = lease_seconds
        self._leases: dict[str, Lease] = {}  # kept, because a lease is watched by the same object
        self._held: Lease | None = None
        self._done: set[str] = set()
        self._waits_since: float | None = None
        self._said = False

    @property
    def is_gone(self) -> bool:
        """Whether the folder was renamed (it stays on the disk, so that its inode is nobody else's)."""
        return self.inode is None or _inode(self.folder) != self.inode

    @property
    def is_lost(self) -> bool:
        """Whether what the body of the loop is making is no longer this process's to commit."""
        return self.is_gone or (self._held is not None and self._held.is_lost)

    def check(self) -> None:
        """Raise ``ClaimLostError`` if ``is_lost``."""
        if self.is_gone:
            raise ClaimLostError(f"{self.folder}: another process has committed this folder")
        if self._held is not None:
            self._held.check()

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
        pause = POLL_SECONDS[0]
        while left := self.remaining:
            worked = False
            for unit in _from_own_start(left):
                lease = self._lease(unit)
                if self._is_done(unit) or not lease.take():
                    continue
                self._held = lease
                try:
                    if not self._is_done(unit):  # it may have been committed between the look and the claim
                        worked = True
                        yield unit
                        if not self._is_done(unit) and not self.is_lost:
                            raise RuntimeError(
                                f"unit {unit}: the body of the loop went on without committing it"
                            )
                finally:
                    self._held = None
                    lease.release()
            self._tell_of_waiting(worked, left)
            pause = POLL_SECONDS[0] if worked else min(2 * pause, POLL_SECONDS[1])
            if not worked:
                time.sleep(pause)

    def _lease(self, unit: str) -> Lease:
        if unit not in self._leases:
            self._leases[unit] = Lease(self.folder, unit, self.lease_seconds)
        return self._leases[unit]

    def _is_done(self, unit: str) -> bool:
        return self.is_gone or self.is_done(unit)

    def _tell_of_waiting(self, worked: bool, left: list[str]) -> None:
        """Say once, after ``QUIET_SECONDS`` without work, who works on what this process waits for."""
        now = time.monotonic()
        if worked or self._waits_since is None:
            self._waits_since = None if worked else now
        elif not self._said and now - self._waits_since >= QUIET_SECONDS and is_main():
            lease = self._lease(left[0])
            if holder := lease.holder:
                self._said = True
                ends = "as soon as that process ends, or " if holder.is_here else ""
                text = (
                    f"waiting for unit {left[0]} ({len(left)} left), claimed by {holder}: taken over {ends}"
                )
                say(escape(f"{text}after {duration(lease.seconds)} without a sign of life"))


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
    store: Store, work: Work, counts: Callable[[], Mapping[str, object]], files: tuple[str, ...] = ("**/*",)
) -> Artifact:
    """Commit ``work`` by exactly one of the processes that reach this line, and return the artifact in all.

    ``counts`` is called by that one, just before the commit (it may write files that belong to the artifact).
    If it dies, another takes over. What a late process may have left under the working name is removed. Raises
    ``ArtifactError`` if the working folder was removed and no artifact is there.
    """
    share = WorkShare(work.path, ["commit"], lambda _: store.find(work.kind, work.fingerprint) is not None)
    for _ in share:
        try:
            store.commit(work, counts(), files, share.check)
        except (ClaimLostError, FileNotFoundError):
            if not share.is_lost:
                raise
    artifact = store.find(work.kind, work.fingerprint)
    if artifact is None:
        raise ArtifactError(
            f"{work.path}: this working folder was removed before its commit: run the command again"
        )
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


def _from_own_start(units: list[str]) -> list[str]:
    """Each rank starts elsewhere, so that ranks seldom ask for the same unit."""
    start = rank() * len(units) // max(1, world_size()) % len(units)
    return units[start:] + units[:start]
