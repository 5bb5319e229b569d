"""Shared by the benchmarks: run a function in a process of its own and report seconds and peak extra memory."""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any


def resident_peak() -> float:
    """Largest resident size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _child(pipe: Any, prepare: Callable[..., Callable[[], None]], arguments: tuple, repeats: int) -> None:
    step = prepare(*arguments)
    before = resident_peak()
    seconds = []
    for _ in range(repeats + 1):  # the first warms up
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    pipe.send((statistics.median(seconds[1:] or seconds), resident_peak() - before))


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
