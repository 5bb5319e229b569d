"""Seconds and peak memory of one training step from cached states: ``python benchmarks/train_step.py [--drafters]``.

The draft is for SmolLM2-135M (hidden size 576, vocabulary 49,152), with depth 2 and rank 64. A step has 4 sequences x
32 anchors x 7 slots, and consists of forward pass, backward pass and AdamW. ``--drafters`` compares the algorithms.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from measure import measure  # noqa: E402

from pipeline import console  # noqa: E402
from pipeline.config import DrafterConfig  # noqa: E402
from pipeline.drafts import registry  # noqa: E402
from pipeline.drafts.algorithms import ALGORITHMS  # noqa: E402
from pipeline.drafts.base import Batch, Blocks, LossWeights, supervise  # noqa: E402

HIDDEN, ROWS, SEQUENCES, TOKENS, ANCHORS, TAPS = 576, 49_152, 4, 256, 32, 5


# name -> algorithm, fields of its config, loss weights
DSPARK = ("dspark", {"depth": 2, "markov_rank": 64}, LossWeights(0.1, 0.9, 1.0))
DRAFTERS: dict[str, tuple[str, dict[str, Any], LossWeights]] = {
    "dspark": DSPARK,
    "dspark_rnn": ("dspark", {**DSPARK[1], "markov_head": "rnn"}, DSPARK[2]),
    "dspark, 8192 tokens": ("dspark", {**DSPARK[1], "vocab_size": 8192}, DSPARK[2]),
    "dflash": ("dflash", {"depth": 2}, LossWeights(1.0, 0.0, 0.0)),
    "eagle3": ("eagle3", {}, LossWeights(0.0, 0.0, 0.0, soft=1.0)),
    "mtp": ("mtp", {"train_steps": 1}, LossWeights(1.0, 0.0, 0.0)),
}


def draft(attention: str, name: str = "dspark"):  # noqa: ANN201
    from transformers import LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=1536, num_attention_heads=9, num_key_value_heads=3, head_dim=64,
        num_hidden_layers=30, vocab_size=ROWS, max_position_embeddings=8192,
    )  # fmt: skip
    embedding = (torch.randn(ROWS, HIDDEN) * 0.02).bfloat16()
    tensors = SimpleNamespace(
        embedding=embedding, head=embedding, final_norm=torch.ones(HIDDEN), config=config
    )
    algorithm, changes, _ = DRAFTERS[name]
    drafter = DrafterConfig(name=name, algorithm=algorithm, **ALGORITHMS[algorithm].fixed | changes)
    size = drafter.vocab_size
    ids = None if size is None else torch.arange(0, ROWS, ROWS // size)[:size]
    made = registry.build(drafter, tensors, [1, 8, 14, 20, 27], 16, registry.Start(ids=ids)).train()
    made.attention = attention
    return made


def batch() -> tuple[Batch, Blocks]:
    g = torch.Generator().manual_seed(0)
    anchors = torch.stack(
        [torch.randperm(TOKENS - 58, generator=g)[:ANCHORS].sort().values + 50 for _ in range(4)]
    )
    made = Batch(
        input_ids=torch.randint(0, ROWS, (SEQUENCES, TOKENS), generator=g),
        loss_mask=(torch.arange(TOKENS) >= 50).expand(SEQUENCES, -1),
        lengths=torch.full((SEQUENCES,), TOKENS),
        hidden=torch.randn(SEQUENCES, TOKENS, TAPS * HIDDEN, generator=g).bfloat16(),
        last_hidden=torch.randn(SEQUENCES, TOKENS, HIDDEN, generator=g).bfloat16(),
        samples=torch.arange(SEQUENCES),
    )
    return made, Blocks(anchors, torch.ones_like(anchors, dtype=torch.bool))


def prepare(dtype: str, attention: str, l1: float, name: str = "dspark") -> Callable[[], None]:
    model, (data, blocks) = draft(attention, name), batch()
    optimizer = torch.optim.AdamW(model.trainable_parameters(), lr=1e-3)
    supervision = supervise(data, blocks, model.max_drafts, 7.0, model.trained_drafts)
    weights = DRAFTERS[name][2]
    weights = weights if l1 else dataclasses.replace(weights, l1=0.0)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16) if dtype == "bf16" else nullcontext():
            terms = model.loss(data, blocks, supervision, weights)
        (terms.total / supervision.weights.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--drafters", action="store_true")
    options = parser.parse_args()
    title = f"{SEQUENCES} sequences x {ANCHORS} anchors x 7 slots, {torch.get_num_threads()} threads"
    if options.drafters:
        compare_drafters(title, options.repeats)
        return
    settings = [
        ("bf16", "grouped", 0.9),
        ("bf16", "grouped", 0.0),
        ("bf16", "dense", 0.9),
        ("fp32", "grouped", 0.9),
    ]
    results = {s: measure(prepare, *s, repeats=options.repeats) for s in settings}
    rows = [(*s, f"{seconds:.2f}", console.size(peak)) for s, (seconds, peak) in results.items()]
    console.table(title, ("type", "attention", "L1 weight", "s a step", "peak extra"), rows)
    console.say(f"bf16 / fp32: {results[settings[0]][0] / results[settings[3]][0]:.2f}")


def compare_drafters(title: str, repeats: int) -> None:
    results = {name: measure(prepare, "bf16", "grouped", 0.9, name, repeats=repeats) for name in DRAFTERS}
    rows = [
        (name, f"{seconds:.2f}", f"{seconds / results['dspark'][0]:.2f}", console.size(peak))
        for name, (seconds, peak) in results.items()
    ]
    console.table(title + ", bf16", ("drafter", "s a step", "of dspark's", "peak extra"), rows)


if __name__ == "__main__":
    main()
