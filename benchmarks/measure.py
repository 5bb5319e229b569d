"""Shared by the benchmarks: run a function in a process of its own and report seconds and peak extra memory."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def resident(field: str) -> int:
    """Bytes of this process: ``VmRSS`` now, ``VmHWM`` the largest since ``forget_peak``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def forget_peak() -> None:
    """Start the peak anew (Linux): what was resident only while the inputs were made must not hide what follows."""
    Path("/proc/self/clear_refs").write_text("5")


def _child(pipe: Any, prepare: Callable[..., Callable[[], None]], arguments: tuple, repeats: int) -> None:
    step = prepare(*arguments)
    forget_peak()
    before = resident("VmRSS")
    seconds = []
    for _ in range(repeats + 1):  # the first warms up
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    pipe.send((statistics.median(seconds[1:] or seconds), resident("VmHWM") - before))


def measure(
    prepare: Callable[..., Callable[[], None]], *arguments: object, repeats: int = 3
) -> tuple[float, float]:
    """(median seconds a call, peak bytes beyond what ``prepare`` left resident) of the function that it returns."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(there, prepare, arguments, repeats))
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        return float("nan"), float("nan")  # the process was killed: it did not fit
    finally:
        process.join()
