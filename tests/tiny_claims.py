"""Claims of other hosts and of processes that are killed or stand still."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline.store.lease import Lease


def write_claim(lease: Lease, pid: int = 7, host: str = "elsewhere") -> Path:
    """The claim of process ``pid`` on ``host``, as that host would have written it."""
    lease.path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        "filelock/2",
        f"pid={pid}",
        f"host={host}",
        "mode=lease",
        f"token={'a' * 32}",
        f"duration={lease.seconds}",
    ]
    lease.path.write_text("\n".join(lines) + "\n")
    return lease.path


@contextlib.contextmanager
def owner(lease: Lease) -> Iterator[int]:
    """The id of a process that holds the claim of ``lease``; it is killed at the end."""
    folder, _, unit = lease.path.name.removesuffix(".lock").rpartition(".")
    arguments = [str(lease.path.parent.parent / folder), unit, str(lease.seconds)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen([sys.executable, __file__, *arguments], env=environment)
    try:
        deadline = time.monotonic() + 60
        while lease.holder is None:
            assert time.monotonic() < deadline and process.poll() is None, "the other process took no claim"
            time.sleep(0.02)
        yield process.pid
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def take_within(lease: Lease, seconds: float) -> float | None:
    """Try until the claim is taken; the seconds that took, or None if it was not taken in time."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if lease.take():
            return time.monotonic() - began
        time.sleep(0.02)
    return None


if __name__ == "__main__":  # the process of ``owner``
    held = Lease(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
    assert held.take()
    time.sleep(600)
