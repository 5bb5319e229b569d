"""How long Sequential Temperature Scaling takes (gamma 7), by the number of recorded rounds, and what it improves.

python benchmarks/calibration.py
"""

from __future__ import annotations

import time

import numpy as np

from pipeline import console
from pipeline.confidence.temperatures import fit, quality, scaled

GAMMA, SIZES = 7, (1_000, 10_000, 100_000)


def rounds(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Confidences whose logits are twice as large as the true ones, and outcomes drawn from the true ones."""
    rng = np.random.default_rng(seed)
    true = rng.normal(0.8, 1.2, (count, GAMMA))
    held = rng.uniform(size=true.shape) < 1 / (1 + np.exp(-true))
    return 1 / (1 + np.exp(-2 * true)), held.cumprod(1).sum(1), np.full(count, GAMMA)


def main() -> None:
    rows = []
    unseen, accepted, proposed = rounds(SIZES[-1], seed=1)
    before = np.mean([q.ece for q in quality(unseen, accepted, proposed)])
    for count in SIZES:
        recorded = rounds(count, seed=0)
        began = time.perf_counter()
        temperatures = fit(*recorded)
        seconds = time.perf_counter() - began
        after = np.mean([q.ece for q in quality(scaled(unseen, temperatures), accepted, proposed)])
        rows.append((f"{count:,}", f"{seconds:.2f}", f"{before:.1%}", f"{after:.1%}"))
    columns = ("rounds of the fit", "seconds", "mean ECE before", "after, on unseen rounds")
    console.table("Sequential Temperature Scaling, numpy", columns, rows)


if __name__ == "__main__":
    main()
