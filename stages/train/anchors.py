"""Anchors, the positions in a sample at which blocks are drafted, as pure functions of the mask and a key.

An anchor at position a is legal if token a+1, the label of the block's first draft, is an answer token (pitfall 3). The
draw depends only on the key (seed, step, sample), so it is the same on every rank and after a resume.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pipeline.drafts.base import Blocks

TRAIN, HELDOUT = 0, 1  # part of a key, which makes the draws for the two purposes independent


def legal_anchors(loss_mask: Tensor) -> Tensor:
    """Positions a (int64 [n], ascending) whose next token is an answer token; ``loss_mask`` bool [S]."""
    return loss_mask[1:].nonzero().squeeze(1)


def sample_anchors(loss_mask: Tensor, count: int, key: Sequence[int]) -> Tensor:
    """Draw up to ``count`` legal anchors of one sample without replacement, int64 [<= count] ascending.

    ``key`` consists of non-negative integers. Equal keys give equal draws.
    """
    legal = legal_anchors(loss_mask)
    if len(legal) <= count:
        return legal
    chosen = np.random.default_rng(list(key)).choice(len(legal), size=count, replace=False)
    return legal[torch.from_numpy(np.sort(chosen))]


def stack(rows: Sequence[Tensor]) -> Blocks:
    """Blocks of several samples. Shorter rows are padded with their last anchor (0 if they have none)."""
    width = max((len(row) for row in rows), default=0)
    anchors = torch.zeros(len(rows), width, dtype=torch.int64)
    keep = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        anchors[i, : len(row)], keep[i, : len(row)] = row, True
        if len(row):
            anchors[i, len(row) :] = row[-1]
    return Blocks(anchors, keep)
