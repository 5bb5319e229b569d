"""Seconds and peak memory of one training step from cached states: ``python benchmarks/train_step.py``.

The setting of the project's early measurements: a draft for SmolLM2-135M (hidden 576, vocabulary 49,152), depth 2,
rank 64, 4 sequences x 32 anchors x 7 slots, forward + backward + AdamW.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from measure import measure  # noqa: E402

from pipeline import console  # noqa: E402
from pipeline.config import DrafterConfig  # noqa: E402
from pipeline.drafts import registry  # noqa: E402
from pipeline.drafts.base import Batch, Blocks, LossWeights, supervise  # noqa: E402

HIDDEN, ROWS, SEQUENCES, TOKENS, ANCHORS, TAPS = 576, 49_152, 4, 256, 32, 5


def draft(attention: str):  # noqa: ANN201
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
    drafter = DrafterConfig(name="dspark", algorithm="dspark", depth=2, markov_rank=64)
    made = registry.build(drafter, tensors, [1, 8, 14, 20, 27], 16).train()
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


def prepare(dtype: str, attention: str, l1: float) -> Callable[[], None]:
    model, (data, blocks) = draft(attention), batch()
    optimizer = torch.optim.AdamW(model.trainable_parameters(), lr=1e-3)
    supervision = supervise(data, blocks, 7, 7.0)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16) if dtype == "bf16" else nullcontext():
            terms = model.loss(data, blocks, supervision, LossWeights(0.1, l1, 1.0))
        (terms.total / supervision.weights.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    settings = [
        ("bf16", "grouped", 0.9),
        ("bf16", "grouped", 0.0),
        ("bf16", "dense", 0.9),
        ("fp32", "grouped", 0.9),
    ]
    results = {s: measure(prepare, *s, repeats=repeats) for s in settings}
    rows = [(*s, f"{seconds:.2f}", console.size(peak)) for s, (seconds, peak) in results.items()]
    title = f"{SEQUENCES} sequences x {ANCHORS} anchors x 7 slots, {torch.get_num_threads()} threads"
    console.table(title, ("type", "attention", "L1 weight", "s a step", "peak extra"), rows)
    console.say(f"bf16 / fp32: {results[settings[0]][0] / results[settings[3]][0]:.2f}")


if __name__ == "__main__":
    main()
