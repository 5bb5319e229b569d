"""Allows one live run per training, because two in one work folder would mix their records and checkpoints."""

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
    """Another live process runs the same training."""


@contextmanager
def sole_run(folder: Path) -> Iterator[Lease]:
    """Rank 0 holds the claim on the work ``folder`` for the duration of the block. All ranks enter together.

    Rank 0 calls the claim's ``check`` before it writes, because a claim may be lost. The claim of a dead process is
    taken over. Raises ``BusyError`` on rank 0 if another live process holds it.
    """
    lease = Lease(folder, "run")
    trainer.on_main(lambda: _take(lease, folder))
    try:
        yield lease
    finally:
        if ranks.is_main():
            lease.release()


def _take(lease: Lease, folder: Path) -> None:
    """Take the claim. This waits to see whether the claim of an owner on another host changes: then it is alive."""
    first: Holder | None = None
    while not lease.take():
        holder = lease.holder
        if holder is not None:
            if holder.is_here or first not in (None, holder):
                raise BusyError(f"{folder}: {holder} runs the same training: wait for it, or stop it")
            if first is None:
                console.say(f"waiting for a sign of life of the run's last owner: {holder}")
            first = holder
        time.sleep(POLL_SECONDS)
