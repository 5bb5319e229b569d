"""One live run a training: two of them in one work folder would mix their records and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_specs.errors import UserError
from pipeline import console, ranks
from pipeline.store.lease import Holder, Lease
from stages.train import trainer

POLL_SECONDS = 1.0


class BusyError(UserError):
    """Another live process works on the same training."""


@contextmanager
def sole_run(folder: Path) -> Iterator[Lease]:
    """Rank 0 holds the claim of the run in the work ``folder`` for the block; all ranks enter together.

    The claim may be lost: rank 0 calls its ``check`` before it writes. Raises ``BusyError`` on rank 0 if
    another live process holds the claim; that of a dead owner is taken over.
    """
    lease = Lease(folder, "run")
    trainer.on_main(lambda: _take(lease, folder))
    try:
        yield lease
    finally:
        if ranks.is_main():
            lease.release()


def _take(lease: Lease, folder: Path) -> None:
    """Take the claim. An owner on another host is alive if its claim changes, so that is waited for."""
    first: Holder | None = None
    while not lease.take():
        holder = lease.holder
        if holder is not None:
            if holder.is_here or first not in (None, holder):
                raise BusyError(
                    f"{folder}: this very training is being run by {holder}: wait for it, or stop it"
                )
            if first is None:
                console.say(f"waiting for a sign of life of the run's last owner: {holder}")
            first = holder
        time.sleep(POLL_SECONDS)
