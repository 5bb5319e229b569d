"""Learning rate and loss weights as pure functions of the step, so a resume restores nothing (pitfall 34)."""

from __future__ import annotations

import math
from dataclasses import replace

from pipeline.config import ConfigError, LossConfig, TrainConfig
from pipeline.drafts.base import LossWeights

LARGE_BATCH, PASSES, EVALUATE_EVERY = 512, 10.0, 500  # of a run on large data, as the paper's
# Small data: a pass has at least 64 steps (below 512 samples: of 8 sequences), and passes are repeated until there are
# 500 steps, which a draft needs to learn anything; the best draft by held-out samples is kept, so that more do no harm.
STEPS_A_PASS, SMALL_BATCH, LEAST_STEPS, MOST_PASSES = 64, 8, 500, 100.0


def chosen(config: TrainConfig, samples: int) -> TrainConfig:
    """``config`` with values for ``global_batch``, ``evaluate_every`` and the length of the run if they are open.

    ``samples`` is the number of training samples, at least 1.
    """
    fitting = 2 ** int(math.log2(max(1, samples / STEPS_A_PASS)))
    batch = config.global_batch or min(LARGE_BATCH, max(fitting, min(SMALL_BATCH, samples)))
    epochs, every = config.epochs, config.evaluate_every or EVALUATE_EVERY
    if config.steps is None and epochs is None:
        epochs = min(MOST_PASSES, max(PASSES, LEAST_STEPS * batch / samples))
        if epochs > PASSES and config.evaluate_every is None:
            every = min(every, max(1, int(epochs * samples / batch) // 10))
    return replace(config, global_batch=batch, epochs=epochs, evaluate_every=every)


def total_steps(config: TrainConfig, samples: int) -> int:
    """Steps of a run over ``samples`` training samples: ``steps``, or ``epochs`` rounded up to whole steps.

    Raises ``ConfigError`` when there are none.
    """
    steps = config.steps
    if steps is None:
        assert config.epochs is not None and config.global_batch is not None, "chosen() fills them in"
        steps = math.ceil(config.epochs * samples / config.global_batch)
    if steps < 1:
        raise ConfigError(
            f"train.steps={config.steps}, train.epochs={config.epochs}: expected at least one step"
        )
    return steps


def learning_rate(step: int, total: int, config: TrainConfig) -> float:
    """The rate of step ``step`` (0-based): a linear warm-up to ``lr``, then a cosine towards ``min_lr * lr``."""
    warm = math.ceil(config.warmup * total)
    if step < warm:
        return config.lr * (step + 1) / warm
    progress = (step - warm) / max(1, total - warm)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return config.lr * (config.min_lr + (1 - config.min_lr) * cosine)


def loss_weights(step: int, total: int, config: LossConfig) -> LossWeights:
    """The weights of the loss terms at step ``step`` of ``total``.

    Each changes linearly from its start value to its final value between the two shares ``ramp`` of the run. Without a
    start value it is constant, as in the paper. Short runs start with cross-entropy, because the L1 term has almost no
    gradient as long as the two distributions do not overlap.
    """
    first, last = config.ramp
    share = step / total
    progress = 1.0 if share >= last else 0.0 if share <= first else (share - first) / (last - first)
    return LossWeights(
        ce=_between(config.ce_start, config.ce, progress),
        l1=_between(config.l1_start, config.l1, progress),
        confidence=_between(config.confidence_start, config.confidence, progress),
        soft=config.soft,
    )


def final_weights(config: LossConfig) -> LossWeights:
    """The weights at the end of the run. All held-out losses use them, so that they are comparable."""
    return LossWeights(config.ce, config.l1, config.confidence, config.soft)


def _between(start: float | None, end: float, progress: float) -> float:
    return end if start is None else (1 - progress) * start + progress * end
