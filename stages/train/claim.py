"""One live run a training: two of them in one work folder would mix their records and checkpoints."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from data_specs.errors import UserError
from pipeline import console
from pipeline.store.work import Owner, WorkShare
from stages.train import trainer

RUNNING = ".running"  # beside the work folders: it outlives their rename into an artifact
POLL_SECONDS = 1.0


class BusyError(UserError):
    """Another live process works on the same training."""


class RunClaim(WorkShare):
    """The claim of a whole run, with ``fingerprint`` (that of its inputs) as its only unit."""

    def __init__(self, folder: Path, fingerprint: str, stale_after: float = 120.0) -> None:
        super().__init__(folder / RUNNING, [fingerprint[:16]], lambda _: False, stale_after)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the claim for the block; a dead owner's is taken over. Raises ``BusyError`` naming a live one."""
        self.claims.mkdir(parents=True, exist_ok=True)
        with self._held(self._take(), self.units[0]):
            yield

    def _take(self) -> Path:
        """The claim. An owner on another host is alive if its heartbeat moves, so that is waited for."""
        first = None
        while (claim := self._claim(self.units[0])) is None:
            seen = self._seen()
            if seen is None:
                continue
            owner = seen[0]
            if owner.host == self.owner.host or first not in (None, seen):
                raise BusyError(self._busy(owner))
            if first is None:
                console.say(f"waiting for a sign of life of the run's last owner: {_name(owner)}")
            first = seen
            time.sleep(POLL_SECONDS)
        return claim

    def _seen(self) -> tuple[Owner, float] | None:
        """The present owner and its last heartbeat; None when the claim was released meanwhile."""
        claims = list(self.claims.glob(f"{self.units[0]}@*"))
        if not claims:
            return None
        claim = max(claims, key=lambda path: int(path.name.rpartition("@")[2]))
        try:
            return Owner(**json.loads(claim.read_text())), claim.stat().st_mtime
        except FileNotFoundError:
            return None

    def _busy(self, owner: Owner) -> str:
        return (
            f"this very training is being run by {_name(owner)} (its work folder: "
            f"{self.claims.parent.parent / f'.partial-{self.units[0]}'}): wait for it, or stop it"
        )


@contextmanager
def sole_run(folder: Path, fingerprint: str) -> Iterator[None]:
    """Rank 0 holds the claim for the block. All ranks enter together; raises ``BusyError`` on rank 0."""
    with ExitStack() as stack:
        trainer.on_main(lambda: stack.enter_context(RunClaim(folder, fingerprint).held()))
        yield


def _name(owner: Owner) -> str:
    return f"host {owner.host.partition('/')[0]}, pid {owner.pid}"
