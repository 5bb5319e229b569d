"""Sequential Temperature Scaling of confidences, and how well calibrated they are.

c[k] is the confidence head's probability that draft k of a block is accepted, given that those before it are; what the
scheduler uses is the cumulative product a[k] = prod_{i <= k} c[i]. Temperatures are fitted from left to right: T_k
minimises the expected calibration error (ECE) of prod_{i <= k} sigmoid(logit(c_i) / T_i), the earlier ones fixed
(arXiv 2607.05147). Dividing a logit by a temperature keeps the order of c[k], so no ranking at a position changes.

Shapes: N rounds, G drafts a block. ``accepted`` int64 [N] leading drafts that held, ``proposed`` int64 [N] drafts that
had a chance to (a round that ends early says nothing about later ones). Everything is numpy, nothing reads a file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data_specs.errors import UserError

Array = np.ndarray
# Neighbours differ by 5 %. At 100 hardly anything is left of a confidence but one half: a head that was overfitted
# needs that much, and no temperature takes a confidence above one half below it.
GRID = np.geomspace(0.1, 100.0, 142)
BINS = 20
# Simulated (five positions, twelve fits each): 2 rounds give any temperature and a calibration error of 13 to 19 %.
# With 100 rounds some fits still raise the error of a head that is only mildly overconfident (6 %, T = 1.5). With 200
# none did, and errors of 10 and 15 % came down to 3 or 4 %. One held-out answer has dozens of rounds.
LEAST_ROUNDS = 200
EDGE = 1e-9  # confidences are kept this far from 0 and 1, where a logit is infinite


class CalibrationError(UserError):
    """Rounds that nothing can be fitted from; the message says what was expected."""


@dataclass(frozen=True)
class Quality:
    """How good predictions are at one position: of the accepted share, by bins, and of their order.

    ``auc`` is None where all outcomes are equal. ``predicted``, ``observed`` and ``counts`` [20] make the reliability
    diagram: mean prediction and share of accepted in each bin (NaN where it is empty).
    """

    rounds: int
    ece: float
    brier: float
    auc: float | None
    predicted: Array
    observed: Array
    counts: Array


def fit(confidences: Array, accepted: Array, proposed: Array) -> Array:
    """Temperatures fp64 [G] by the module's rule; positions that fewer than ``LEAST_ROUNDS`` reached keep 1.

    Raises ``CalibrationError`` for confidences that are no probabilities, or none at all.
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
    """What the raw confidence of each draft must reach for the calibrated one to reach ``threshold`` (0 to 1).

    sigmoid(logit(c) / T_k) >= t is c >= sigmoid(T_k logit(t)); 0 and 1 stay, and so does any t at T_k = 1.
    """
    if threshold in (0, 1):
        return [float(threshold)] * len(temperatures)
    logit = math.log(threshold / (1 - threshold))
    return [threshold if t == 1 else 1 / (1 + math.exp(min(-t * logit, 700.0))) for t in temperatures]


def quality(confidences: Array, accepted: Array, proposed: Array) -> list[Quality]:
    """Quality of the cumulative product at each position that some round reached."""
    products = np.cumprod(np.asarray(confidences, dtype=np.float64), axis=1)
    found = []
    for k in range(products.shape[1]):
        rows = np.asarray(proposed) > k
        if not rows.any():
            break
        found.append(_quality(products[rows, k], np.asarray(accepted)[rows] > k))
    return found


def ece(predictions: Array, outcomes: Array, bins: int = BINS) -> float:
    """Expected calibration error over equal-width bins: sum_b n_b / n |mean prediction - share of outcomes|."""
    place = np.minimum((predictions * bins).astype(np.int64), bins - 1)
    gap = np.bincount(place, predictions - outcomes, minlength=bins)
    return float(np.abs(gap).sum() / len(predictions))


def auc(predictions: Array, outcomes: Array) -> float | None:
    """Probability that a prediction of an outcome 1 is above one of an outcome 0 (ties count half)."""
    positive = int(outcomes.sum())
    negative = len(outcomes) - positive
    if not positive or not negative:
        return None
    _, place, counts = np.unique(predictions, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # mean rank of equal values
    return float((ranks[place][outcomes].sum() - positive * (positive + 1) / 2) / (positive * negative))


def _quality(predictions: Array, outcomes: Array) -> Quality:
    place = np.minimum((predictions * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(place, minlength=BINS)
    with np.errstate(invalid="ignore"):
        predicted = np.bincount(place, predictions, minlength=BINS) / counts
        observed = np.bincount(place, outcomes, minlength=BINS) / counts
    brier = float(np.mean((predictions - outcomes) ** 2))
    return Quality(
        len(predictions),
        ece(predictions, outcomes),
        brier,
        auc(predictions, outcomes),
        predicted,
        observed,
        counts,
    )


def _logits(confidences: Array) -> Array:
    """Logits fp64 [N, G]; NaN stands where a round drafted less than G and is never looked at."""
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
