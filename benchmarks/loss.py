"""Time and peak memory of the chunked loss and of the plain loss: ``python benchmarks/loss.py [--soft]``.

By default it has a vocabulary of 152k, hidden size 2560, 3,584 slots (512 blocks of 7), Markov rank 256 and bf16
products. ``--soft`` takes Eagle3's soft cross-entropy instead of DSpark's 0.1 CE + 0.9 L1. ``--draft-rows`` sets a
reduced draft vocabulary.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from measure import measure  # noqa: E402

from pipeline import console  # noqa: E402
from pipeline.drafts.losses import Coefficients, Output, distribution_loss  # noqa: E402


def inputs(slots: int, rows: int, width: int, rank: int, draft_rows: int | None) -> dict[str, Any]:
    g = torch.Generator().manual_seed(0)

    def random(*shape: int, std: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=g) * std).bfloat16()

    head = random(rows, width, std=0.02)
    ids = None if draft_rows is None else torch.randperm(rows, generator=g)[:draft_rows].sort().values
    return {
        "hidden": random(slots, width).requires_grad_(),
        "features": random(slots, rank).requires_grad_(),
        "w2": random(draft_rows or rows, rank, std=0.02).requires_grad_(),
        "output": Output(head if ids is None else head[ids], head, ids),
        "target_hidden": random(slots, width),
        "labels": torch.randint(0, rows, (slots,), generator=g),
        "weights": torch.rand(slots, generator=g),
    }


def chunked(soft: bool, *sizes: Any) -> Callable[[], None]:
    x, coefficients = inputs(*sizes), Coefficients(0.0, 0.0, 1.0) if soft else Coefficients(0.1, 0.9)

    def step() -> None:
        distribution_loss(**x, coefficients=coefficients).total.backward()

    return step


def plain(soft: bool, *sizes: Any) -> Callable[[], None]:
    x = inputs(*sizes)
    output, labels = x["output"], x["output"].indices(x["labels"])

    def step() -> None:
        logits = (x["hidden"] @ output.head.T).float() + (x["features"] @ x["w2"].T).float()
        target = (x["target_hidden"] @ output.target_head.T).float().softmax(-1)
        target = target if output.ids is None else target[:, output.ids]
        if soft:
            each = -(target * logits.log_softmax(-1)).sum(-1)
        else:
            each = 0.1 * functional.cross_entropy(logits, labels, reduction="none", ignore_index=-1)
            each = each + 0.9 * ((logits.softmax(-1) - target).abs().sum(-1) + 1 - target.sum(-1))
        (each * x["weights"]).sum().backward()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=3584)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=2560)
    parser.add_argument("--rank", type=int, default=256)
    parser.add_argument("--draft-rows", type=int)
    parser.add_argument("--soft", action="store_true")
    parser.add_argument("--repeats", type=int, default=1)
    a = parser.parse_args()
    sizes = (a.slots, a.vocabulary, a.hidden, a.rank, a.draft_rows)
    results = {f.__name__: measure(f, a.soft, *sizes, repeats=a.repeats) for f in (chunked, plain)}
    rows = [(name, f"{seconds:.2f}", console.size(peak)) for name, (seconds, peak) in results.items()]
    console.table(
        f"loss, {sizes[:4]} slots x vocabulary x hidden x rank", ("loss", "s a step", "peak extra"), rows
    )
    ratios = [results["chunked"][i] / results["plain"][i] for i in (0, 1)]
    console.say(f"chunked / plain: time {ratios[0]:.2f}, memory {ratios[1]:.3f}")


if __name__ == "__main__":
    main()
