"""Prints the plan of a comparison (``plan=true``): runs, steps, time and disk."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from data_specs.files import free_bytes
from pipeline import console
from pipeline.config import Config, TargetConfig
from pipeline.target.model import Target
from stages.compare.variants import Comparison

CONTEXT, TOKENS = 64, 8  # positions before and tokens of the decoding that is timed


@dataclass(frozen=True)
class Cost:
    """The cost of training one variant, as the stage train computes it."""

    steps: int
    seconds: float
    size: int  # bytes of its draft


def show_plan(config: Config, layout: Comparison, costs: dict[str, Cost], root: Path) -> None:
    """Print one line per variant, and the totals. Decodes a few tokens to time the target; writes nothing."""
    token = token_seconds(config.target)
    rows, evaluating = [], 0.0
    for name, variant in layout.variants.items():
        seconds = token * decoded_tokens(variant.config)
        evaluating += seconds
        cost, times = costs[name], (console.duration(costs[name].seconds), console.duration(seconds))
        rows.append((name, f"{cost.steps:,}", *times, console.size(cost.size)))
    columns = ("variant", "steps", "training, about", "evaluating, at most", "draft")
    console.table(f"Plan of stage compare: {len(rows)} variants on {config.target.name}", columns, rows)
    training, size = sum(c.seconds for c in costs.values()), sum(c.size for c in costs.values())
    free = free_bytes(root)
    console.say(
        f"{len(rows)} runs with {sum(c.steps for c in costs.values()):,} steps: about {console.duration(training)} of "
        f"training (from FLOPs and this machine's matmul speed) and at most {console.duration(evaluating)} of "
        f"evaluation ({1000 * token:.0f} ms per token, one token per pass). The drafts take {console.size(size)}; "
        f"{console.size(free)} are free. Drafts and evaluations that exist are not made again. Nothing was done."
    )


def decoded_tokens(config: Config) -> int:
    """The most tokens that an evaluation decodes, including plain decoding.

    It is 0 without a limit on prompts (``evaluate.prompts=null``), because their number is then unknown.
    """
    evaluate = config.evaluate
    prompts = (evaluate.prompts or 0) * len(evaluate.benchmarks)
    return prompts * evaluate.max_new_tokens * (2 if evaluate.baseline else 1)


@torch.inference_mode()
def token_seconds(target: TargetConfig) -> float:
    """Seconds of one token of plain decoding, measured after ``CONTEXT`` positions."""
    model = Target.load(target)
    cache = model.new_cache()
    model.run(torch.ones(1, CONTEXT, dtype=torch.int64, device=model.device), cache=cache)
    one = torch.ones(1, 1, dtype=torch.int64, device=model.device)
    began = time.perf_counter()
    for _ in range(TOKENS):
        # Reading the chosen token waits for the device, as decoding does.
        int(model.logits(model.run(one, cache=cache).last_hidden[:, -1]).argmax())
    return (time.perf_counter() - began) / TOKENS
