"""Learning rate and loss weights as pure functions of the step: nothing to restore (pitfall 34)."""

from __future__ import annotations

import math

from pipeline.config import ConfigError, LossConfig, TrainConfig
from pipeline.drafts.base import LossWeights


def total_steps(config: TrainConfig, samples: int) -> int:
    """Steps of a run over ``samples`` training samples: ``steps``, or ``epochs`` rounded up to whole steps.

    Raises ``ConfigError`` when there are none.
    """
    steps = config.steps
    if steps is None:
        assert config.epochs is not None, "the config has exactly one of steps and epochs"
        steps = math.ceil(config.epochs * samples / config.global_batch)
    if steps < 1:
        raise ConfigError(
            f"train.steps={config.steps}, train.epochs={config.epochs}: expected at least one step"
        )
    return steps


def learning_rate(step: int, total: int, config: TrainConfig) -> float:
    """Rate of step ``step`` (0-based): linear warm-up to ``lr``, then a cosine towards ``min_lr * lr``."""
    warm = math.ceil(config.warmup * total)
    if step < warm:
        return config.lr * (step + 1) / warm
    progress = (step - warm) / max(1, total - warm)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return config.lr * (config.min_lr + (1 - config.min_lr) * cosine)


def loss_weights(step: int, total: int, config: LossConfig) -> LossWeights:
    """Weights of the loss terms at step ``step`` of ``total``.

    Each moves linearly from their start values to their final ones between the shares ``ramp`` of
    the run; without start values they are the paper's constants. (The L1 term has almost no gradient while
    the two distributions do not overlap, which makes a short run start with cross-entropy.)
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
    """The weights at the run's end: held-out losses use them throughout, so that they can be compared."""
    return LossWeights(config.ce, config.l1, config.confidence, config.soft)


def _between(start: float | None, end: float, progress: float) -> float:
    return end if start is None else (1 - progress) * start + progress * end
