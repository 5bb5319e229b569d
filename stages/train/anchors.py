"""Anchors: where blocks are drafted in a sample. Pure functions of the mask and a key.

An anchor at position a is legal where token a+1, the label of the block's first slot, is an answer token
(pitfall 3). The key (seed, step, sample) decides the draw, so that it does not depend on the rank that makes
it and is the same after a resume.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pipeline.drafts.base import Blocks

TRAIN, HELDOUT = 0, 1  # first part of a key: draws for the two purposes are independent


def legal_anchors(loss_mask: Tensor) -> Tensor:
    """Positions a (int64 [n], ascending) whose next token is an answer token; ``loss_mask`` bool [S]."""
    return loss_mask[1:].nonzero().squeeze(1)


def sample_anchors(loss_mask: Tensor, count: int, key: Sequence[int]) -> Tensor:
    """Up to ``count`` legal anchors of one sample without replacement, int64 [<= count] ascending.

    ``key``: non-negative integers; equal keys give equal draws.
    """
    legal = legal_anchors(loss_mask)
    if len(legal) <= count:
        return legal
    chosen = np.random.default_rng(list(key)).choice(len(legal), size=count, replace=False)
    return legal[torch.from_numpy(np.sort(chosen))]


def stack(rows: Sequence[Tensor]) -> Blocks:
    """Blocks of several samples; shorter rows repeat their last anchor (0 if none), marked not to keep."""
    width = max((len(row) for row in rows), default=0)
    anchors = torch.zeros(len(rows), width, dtype=torch.int64)
    keep = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        anchors[i, : len(row)], keep[i, : len(row)] = row, True
        if len(row):
            anchors[i, len(row) :] = row[-1]
    return Blocks(anchors, keep)
