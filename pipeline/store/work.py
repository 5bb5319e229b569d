"""Units of work that processes on one or many hosts share through a shared folder.

Each process claims a unit (``lease.py``), makes it and commits it by a rename. A claim only avoids duplicate work,
because the contents of a unit do not depend on who made it: two writers of one unit (one of which stood still for a
while) still leave one whole unit.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from data_specs.files import rename_synced
from pipeline.console import duration, say
from pipeline.ranks import is_main, rank, world_size
from pipeline.store.artifacts import Artifact, ArtifactError, Store, Work
from pipeline.store.lease import ClaimLostError, Lease

UNIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
POLL_SECONDS = (0.02, 1.0)  # first and longest pause while others do all the remaining work
QUIET_SECONDS = 10.0  # of waiting after which the user is told who is waited for


class WorkShare:
    """Iterate over the units that this process has to make. The loop ends when every unit is done, by any process.

    ``units`` are names without slashes, the same in every process, and ``is_done`` says whether a unit is committed. If
    ``folder`` is gone or was replaced, another process has committed the artifact, so every unit counts as done.
    The body of the loop makes and commits the unit that it gets. If ``is_lost`` says that another process has taken the
    unit over, the body discards its work. The claim is released when the loop moves on or breaks off. The claim of a
    dead process is taken over at once on its own host, and elsewhere after ``lease_seconds``.
    The loop ends only when all units are done, so it is a barrier too. Raises ``ValueError`` for an invalid name.
    """

    def __init__(
        self, folder: Path, units: Sequence[str], is_done: Callable[[str], bool], lease_seconds: float | None = None
    ) -> None:  # fmt: skip
        for unit in units:
            if not UNIT.fullmatch(unit):
                raise ValueError(f"unit {unit!r}: expected letters, digits, dot, dash or underscore")
        self.folder, self.inode = folder, _inode(folder)
        self.units = list(units)
        self.is_done = is_done
        self.lease_seconds = lease_seconds
        self._leases: dict[str, Lease] = {}  # kept, because a lease remembers what it has seen
        self._held: Lease | None = None
        self._done: set[str] = set()
        self._waits_since: float | None = None
        self._said = False

    @property
    def is_gone(self) -> bool:
        """Whether the folder was renamed. It stays on the disk, so no other folder gets its inode."""
        return self.inode is None or _inode(self.folder) != self.inode

    @property
    def is_lost(self) -> bool:
        """Whether this process may no longer commit the unit that the body of the loop is making."""
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
                    if not self._is_done(unit):  # it may have been committed just before the claim
                        worked = True
                        yield unit
                        if not self._is_done(unit) and not self.is_lost:
                            raise RuntimeError(f"unit {unit}: the body of the loop did not commit it")
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
        """After ``QUIET_SECONDS`` without work, say once which process is waited for."""
        now = time.monotonic()
        if worked or self._waits_since is None:
            self._waits_since = None if worked else now
        elif not self._said and now - self._waits_since >= QUIET_SECONDS and is_main():
            lease = self._lease(left[0])
            if holder := lease.holder:
                self._said = True
                ends = "as soon as that process ends, or " if holder.is_here else ""
                say(
                    f"waiting for unit {left[0]} ({len(left)} left), claimed by {holder}: taken over {ends}"
                    f"after {duration(lease.seconds)} without a sign of life"
                )


def begin_once(store: Store, *inputs: Any) -> Work | Artifact:
    """``store.begin(*inputs)``, or the artifact if another process has just committed it."""
    work = store.begin(*inputs)
    found = store.find(work.kind, work.fingerprint)
    if found is None:
        return work
    with suppress(OSError):  # it is gone, or holds files of an older run
        work.path.rmdir()
    return found


def commit_once(
    store: Store, work: Work, counts: Callable[[], Mapping[str, object]], files: tuple[str, ...] = ("**/*",)
) -> Artifact:
    """Commit ``work`` in exactly one of the processes that call this, and return the artifact in all of them.

    That process calls ``counts`` just before the commit; it may write files of the artifact. If the process dies,
    another takes over. What a late process left under the working name is removed. Raises ``ArtifactError`` if the
    working folder was removed and there is no artifact.
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
            f"{work.path}: this working folder was removed before its commit; run the command again"
        )
    shutil.rmtree(work.path, ignore_errors=True)
    return artifact


def publish_folder(partial: Path, folder: Path) -> None:
    """Rename ``partial`` to ``folder`` so that it survives a power cut.

    If ``folder`` exists, another process has made the same contents, so ``partial`` is removed.
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
    """``units`` in this rank's order: ranks start at different units, so they seldom ask for the same one."""
    start = rank() * len(units) // max(1, world_size()) % len(units)
    return units[start:] + units[:start]
