"""Runs a function in a process of its own and measures seconds and peak extra memory, for the other benchmarks."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def resident(field: str) -> int:
    """Bytes of this process: ``VmRSS`` is the current size, ``VmHWM`` the largest since ``forget_peak``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def forget_peak() -> None:
    """Reset the peak (Linux), so that memory used for making the inputs does not hide what follows."""
    Path("/proc/self/clear_refs").write_text("5")


def _child(pipe: Any, prepare: Callable[..., Callable[[], None]], arguments: tuple, repeats: int) -> None:
    step = prepare(*arguments)
    forget_peak()
    before = resident("VmRSS")
    seconds = []
    for _ in range(repeats + 1):  # the first call warms up
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    pipe.send((statistics.median(seconds[1:] or seconds), resident("VmHWM") - before))


def measure(
    prepare: Callable[..., Callable[[], None]], *arguments: object, repeats: int = 3
) -> tuple[float, float]:
    """Median seconds per call of the function that ``prepare`` returns, and its peak bytes beyond those before."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(there, prepare, arguments, repeats))
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        return float("nan"), float("nan")  # the process was killed because it needed too much memory
    finally:
        process.join()
