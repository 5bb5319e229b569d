"""Writes data_specs/sps/h100_qwen3_4b.json: an SPS table from a roofline model, for a machine that we do not have.

A pass over B tokens reads every weight once and multiplies B rows with it. The slower of the two takes the time:

    seconds(B) = launches + max(weight bytes / (bandwidth * share), 2 weights B / (peak * share))

In addition, a step reads the keys and values of every context position of its requests once. Nothing is measured.

python benchmarks/sps_roofline.py [FILE]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_specs import sps
from data_specs.manifest import write_json

BYTES = 2  # bf16
# H100 SXM, by NVIDIA's data sheet: bytes/s of HBM3, dense bf16 FLOP/s, and the shares of both that kernels reach.
BANDWIDTH, PEAK = 3.35e12, 989e12
BANDWIDTH_SHARE, PEAK_SHARE = 0.8, 0.6
STEP_SECONDS = (
    0.5e-3  # an engine's step without its kernels: scheduling on the host, sampling, replaying the graph
)
LAYER_SECONDS = 10e-6  # kernels of a layer that are too short to fill the GPU
MAX_REQUESTS, DRAFTS = 2048, 7


@dataclass(frozen=True)
class Size:
    """The number of layers and their shapes; ``head`` is the number of rows of the output head."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    head: int

    @property
    def weights(self) -> int:
        """The weights of all products in a pass, including those of the head."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate) + self.hidden * self.head

    @property
    def position_bytes(self) -> int:
        """The bytes of the keys and values of one position."""
        return self.layers * 2 * self.kv_heads * self.head_dim * BYTES


QWEN3_4B = Size(36, 2560, 9728, 32, 8, 128, 151936)  # config.json of Qwen/Qwen3-4B
DSPARK = Size(5, 2560, 9728, 32, 8, 128, 151936)  # five such layers, the same head


def seconds(size: Size, tokens: int) -> float:
    """Seconds of one pass over ``tokens``, without context."""
    move = size.weights * BYTES / (BANDWIDTH * BANDWIDTH_SHARE)
    multiply = 2 * size.weights * tokens / (PEAK * PEAK_SHARE)
    return size.layers * LAYER_SECONDS + max(move, multiply)


def counts(last: int) -> list[int]:
    """1 ... 64 one by one, then eight per doubling, because the knee is between 64 and 512."""
    found = {*range(1, 65), last}
    step = 8
    while (start := 8 * step) < last:
        found |= set(range(start, 2 * start + 1, step))
        step *= 2
    return sorted(count for count in found if count <= last)


def table() -> dict[str, Any]:
    draft = [(r, seconds(DSPARK, r * DRAFTS)) for r in counts(MAX_REQUESTS)]
    verify = [(b, STEP_SECONDS + seconds(QWEN3_4B, b)) for b in counts(MAX_REQUESTS * (DRAFTS + 1))]
    return {
        "name": "h100_qwen3_4b",
        "machine": "NVIDIA H100 SXM, one",
        "model": "Qwen3-4B, bf16",
        "source": "model",
        "note": f"not measured: a roofline model (benchmarks/sps_roofline.py). {BANDWIDTH:.3g} B/s and {PEAK:.3g} "
        f"FLOP/s dense bf16, of which {BANDWIDTH_SHARE:.0%} and {PEAK_SHARE:.0%} are reached; {STEP_SECONDS:g} s a "
        f"step and {LAYER_SECONDS:g} s a layer of launches; {QWEN3_4B.weights:.4g} weights and a draft of "
        f"{DSPARK.layers} layers with blocks of {DRAFTS}; context read once a step and request",
        "context": 0,
        "position_seconds": QWEN3_4B.position_bytes / (BANDWIDTH * BANDWIDTH_SHARE),
        "points": [{"tokens": b, "steps_per_second": round(1 / s, 4)} for b, s in verify],
        "draft": [{"requests": r, "seconds": round(s, 9)} for r, s in draft],
    }


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else sps.FOLDER / "h100_qwen3_4b.json"
    write_json(path, table())
    made = sps.read_table(path)
    print(f"{path}: {len(made.points)} points up to B = {made.points[-1][0]}")


if __name__ == "__main__":
    main()
