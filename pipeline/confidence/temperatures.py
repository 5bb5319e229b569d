"""Sequential Temperature Scaling of confidences, and how well calibrated they are.

c[k] is the confidence head's probability that draft k of a block is accepted if those before it are. The scheduler
uses the cumulative product a[k] = prod_{i <= k} c[i]. Temperatures are fitted from left to right: with the earlier ones
fixed, T_k minimises the expected calibration error (ECE) of prod_{i <= k} sigmoid(logit(c_i) / T_i) (arXiv 2607.05147).
Dividing a logit by a temperature keeps the order of c[k], so no ranking at a position changes.

Shapes: N rounds, G drafts a block. ``accepted`` int64 [N] counts the leading drafts that were accepted, and
``proposed`` int64 [N] those that could have been: a round that ends early says nothing about later drafts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from data_specs.errors import UserError
from data_specs.results.summary import PositionQuality

Array = np.ndarray
# Neighbours differ by 5 %. An overfitted head may need 100, which leaves hardly more than one half of any confidence.
GRID = np.geomspace(0.1, 100.0, 142)
BINS = 20
# Simulated (five positions, twelve fits each): 2 rounds give any temperature and a calibration error of 13 to 19 %.
# With 100 rounds some fits still raise the error of a head that is only mildly overconfident (6 %, T = 1.5). With 200
# none did, and errors of 10 and 15 % came down to 3 or 4 %. One held-out answer has dozens of rounds.
LEAST_ROUNDS = 200
EDGE = 1e-9  # confidences are kept this far from 0 and 1, where a logit is infinite


class CalibrationError(UserError):
    """Nothing can be fitted from these rounds; the message says what was expected."""


def fit(confidences: Array, accepted: Array, proposed: Array) -> Array:
    """Temperatures fp64 [G] by the module's rule; positions that fewer than ``LEAST_ROUNDS`` reached keep 1.

    Raises ``CalibrationError`` if there are no confidences, or some are no probabilities.
    """
    logits = _logits(confidences)
    temperatures = np.ones(logits.shape[1])
    before = np.ones(len(logits))
    for k in range(logits.shape[1]):
        rows = np.asarray(proposed) > k
        if rows.sum() < LEAST_ROUNDS:
            break
        held = np.asarray(accepted)[rows] > k
        errors = [ece(before[rows] * _sigmoid(logits[rows, k] / t), held) for t in GRID]
        temperatures[k] = GRID[int(np.argmin(errors))]
        before *= _sigmoid(logits[:, k] / temperatures[k])
    return temperatures


def scaled(confidences: Array, temperatures: Array) -> Array:
    """Confidences [N, G] (or [G]) at ``temperatures`` [G]: sigmoid(logit(c) / T)."""
    return _sigmoid(_logits(np.atleast_2d(confidences)) / np.asarray(temperatures)).reshape(
        np.shape(confidences)
    )


def raw_thresholds(threshold: float, temperatures: Sequence[float]) -> list[float]:
    """The raw confidence of each draft at which the calibrated one reaches ``threshold`` (0 to 1).

    sigmoid(logit(c) / T_k) >= t means c >= sigmoid(T_k logit(t)). Thresholds 0 and 1 stay, as does any t at T_k = 1.
    """
    if threshold in (0, 1):
        return [float(threshold)] * len(temperatures)
    logit = math.log(threshold / (1 - threshold))
    return [threshold if t == 1 else 1 / (1 + math.exp(min(-t * logit, 700.0))) for t in temperatures]


def quality(confidences: Array, accepted: Array, proposed: Array) -> list[PositionQuality]:
    """Quality of the cumulative product at each position that some round reached."""
    products = np.cumprod(np.asarray(confidences, dtype=np.float64), axis=1)
    reached = [np.asarray(proposed) > k for k in range(products.shape[1])]
    return [
        _quality(products[rows, k], np.asarray(accepted)[rows] > k)
        for k, rows in enumerate(reached)
        if rows.any()
    ]


def ece(predictions: Array, outcomes: Array, bins: int = BINS) -> float:
    """Expected calibration error over equal-width bins: sum_b n_b / n |mean prediction - share of outcomes|."""
    place = np.minimum((predictions * bins).astype(np.int64), bins - 1)
    gap = np.bincount(place, predictions - outcomes, minlength=bins)
    return float(np.abs(gap).sum() / len(predictions))


def auc(predictions: Array, outcomes: Array) -> float | None:
    """Probability that the prediction for an outcome 1 exceeds that for an outcome 0; ties count half.

    None if all outcomes are equal.
    """
    positive = int(outcomes.sum())
    negative = len(outcomes) - positive
    if not positive or not negative:
        return None
    _, place, counts = np.unique(predictions, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # mean rank of equal values
    return float((ranks[place][outcomes].sum() - positive * (positive + 1) / 2) / (positive * negative))


def _quality(predictions: Array, outcomes: Array) -> PositionQuality:
    place = np.minimum((predictions * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(place, minlength=BINS).tolist()

    def means(values: Array) -> list[float | None]:
        sums = np.bincount(place, values, minlength=BINS)
        return [float(total) / n if n else None for total, n in zip(sums, counts, strict=True)]

    brier = float(np.mean((predictions - outcomes) ** 2))
    return PositionQuality(
        len(predictions), ece(predictions, outcomes), brier, auc(predictions, outcomes), means(predictions),
        means(outcomes), counts,
    )  # fmt: skip


def _logits(confidences: Array) -> Array:
    """Logits fp64 [N, G]. They are NaN, and never used, where a round drafted fewer than G tokens."""
    values = np.asarray(confidences, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise CalibrationError("confidences: expected at least one round with confidences, got none")
    known = values[~np.isnan(values)]
    wrong = known[(known < 0) | (known > 1)]
    if wrong.size:
        raise CalibrationError(f"confidences: expected numbers from 0 to 1, got {wrong[0]:g}")
    clipped = np.clip(values, EDGE, 1 - EDGE)
    return np.log(clipped / (1 - clipped))


def _sigmoid(x: Array) -> Array:
    share: Array = 1 / (1 + np.exp(-x))
    return share
