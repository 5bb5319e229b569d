"""The groups ``train`` and ``deepspeed``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from pipeline.config.rules import PAIR, Count, Natural, Positive, Rule, Share, Weight, one_of

Beta = Annotated[float, Rule("a number of at least 0 and below 1", lambda value: 0 <= value < 1)]


@dataclass
class TrainConfig:
    """The optimisation of the draft."""

    # Set at most one of steps and epochs. stages/train/schedule.py chooses both and global_batch if they are null.
    steps: Count | None = None
    epochs: Positive | None = None
    global_batch: Count | None = None  # sequences a step over all ranks
    micro_batch: Count = 8  # sequences a forward pass on one rank
    anchors: Count = 512  # blocks a sequence
    lr: Positive = 6e-4
    betas: Annotated[list[Beta], PAIR] = field(default_factory=lambda: [0.9, 0.95])
    weight_decay: Weight = 0.0
    warmup: Share = 0.04  # share of the steps
    min_lr: Share = 0.0  # share of lr at the end of the cosine
    clip: Positive = 1.0
    dtype: Annotated[str, one_of("bf16", "fp32")] = "bf16"
    attention: Annotated[str, one_of("auto", "dense", "grouped", "flex")] = "auto"
    checkpoint_every: Count = 500
    evaluate_every: Count | None = None  # steps; None: 500, or a tenth of the steps that small data get
    keep_checkpoints: Count = 2
    heldout_samples: Natural = 256
    workers: Natural = 2  # background readers a rank
    verify: Annotated[str, one_of("full", "size")] = "full"  # how the cache is checked before the first step
    compile: bool = False

    def contradictions(self, deepspeed: DeepSpeedConfig) -> Iterator[str]:
        """Yield a message for each contradiction in ``train`` and ``deepspeed``."""
        if self.steps is not None and self.epochs is not None:
            yield f"train.steps and train.epochs: expected one of them, got {self.steps} and {self.epochs}"
        if deepspeed.stage == 0 and deepspeed.offload_optimizer:
            yield "deepspeed.offload_optimizer: expected deepspeed.stage 1, 2 or 3, got 0"


@dataclass
class DeepSpeedConfig:
    """Settings of DeepSpeed; ``extra`` is merged into its JSON last."""

    stage: Annotated[int, one_of(0, 1, 2, 3)] = 1
    offload_optimizer: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
