"""Microseconds of one scheduler step, by the number of requests R (gamma 7). They grow as R log R.

python benchmarks/scheduler.py
"""

from __future__ import annotations

import math
import time

import numpy as np

from pipeline import console
from pipeline.decoding.scheduler import StepRate, policy

GAMMA, REPEATS = 7, 300


def microseconds(requests: int) -> tuple[float, float]:
    """The median step of the policy as it is served, and its first step, which reads the curve for so many requests."""
    rng = np.random.default_rng(requests)
    counts = np.arange(1, requests * (GAMMA + 1) + 1)
    served = policy(
        "algorithm_1", StepRate(1 / (1 + 0.002 * counts + 0.05 * (counts // 32)))
    )  # a curve with jumps
    steps = [rng.uniform(0.2, 1.0, (requests, GAMMA)) for _ in range(16)]
    taken = []
    for i in range(REPEATS):
        began = time.perf_counter()
        served(steps[i % len(steps)])
        taken.append(time.perf_counter() - began)
    return 1e6 * sorted(taken)[REPEATS // 2], 1e6 * taken[0]


def main() -> None:
    rows = []
    for requests in (1, 16, 64, 256, 1024, 2048):
        (taken, first), n = microseconds(requests), requests * GAMMA
        rows.append((requests, f"{taken:.0f}", f"{1000 * taken / (n * math.log2(n)):.2f}", f"{first:.0f}"))
    columns = ("requests", "us a step (median)", "ns / (n log2 n), n = 7 R", "us, first step at R")
    console.table("Algorithm 1, numpy, one core", columns, rows)


if __name__ == "__main__":
    main()
