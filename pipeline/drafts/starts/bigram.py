"""A start for the Markov head: the bigrams of the training answers as a low-rank table.

The head learns B = W1 W2, a bias that depends only on the previous token. Without a backbone, its best value is the
pointwise mutual information log p(next | previous) - log p(next), which counting gives directly. A short run would need
most of its steps to learn it, because a row of W1 gets a gradient only where its token occurs.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 4096  # only so many of the most frequent tokens take part, because the table is dense


def pointwise_information(previous: Tensor, following: Tensor, size: int, smoothing: float) -> Tensor:
    """log (p(next | previous) / p(next)), fp32 [size, size], of n pairs of ids below ``size``, int64 [n] each.

    p(next | previous) is smoothed with s = ``smoothing`` draws from p(next): (count + s p) / (total + s). A pair that
    was never seen after a rare token then has little weight.
    """
    ones = torch.ones(len(previous))
    counts = torch.zeros(size, size).index_put_((previous, following), ones, accumulate=True)
    unigram = counts.sum(0) + 0.1
    unigram /= unigram.sum()
    conditional = (counts + smoothing * unigram) / (counts.sum(1, keepdim=True) + smoothing)
    return (conditional / unigram).log()


def fit(
    previous: Tensor, following: Tensor, rows: int, rank: int, smoothing: float = 5.0
) -> tuple[Tensor, Tensor]:
    """(W1, W2), each fp32 [rows, rank]: W1 W2^T is the best fit of rank ``rank`` (by SVD) to the table above.

    ``previous`` and ``following`` int64 [n] are neighbouring tokens. Tokens that never occur or are not among the
    ``LARGEST`` most frequent have rows of zeros, which give no bias. The randomised SVD uses torch's global generator.
    """
    w1, w2 = torch.zeros(rows, rank), torch.zeros(rows, rank)
    frequency = torch.bincount(torch.cat([previous, following]), minlength=rows)
    size = min(LARGEST, int((frequency > 0).sum()))
    if size == 0 or rank == 0:
        return w1, w2
    kept = frequency.argsort(descending=True, stable=True)[:size]
    place = torch.full((rows,), -1)
    place[kept] = torch.arange(size)
    both = (place[previous] >= 0) & (place[following] >= 0)
    table = pointwise_information(place[previous[both]], place[following[both]], size, smoothing)
    width = min(rank, size)
    left, values, right = torch.svd_lowrank(table, q=width, niter=6)
    w1[kept, :width], w2[kept, :width] = left * values.sqrt(), right * values.sqrt()
    return w1, w2
