"""A start for the Markov head: the bigrams of the training answers, as a low-rank table.

The head learns B = W1 W2, a bias that depends on the previous token only. Its best value without a backbone is the
pointwise mutual information log p(next | previous) - log p(next), which counting gives at once; a short run would
spend most of its steps on it, because each row of W1 gets a gradient only where its token occurs.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 4096  # most frequent tokens that take part: the table is dense


def pointwise_information(previous: Tensor, following: Tensor, size: int, smoothing: float) -> Tensor:
    """fp32 [size, size] log p(next | previous) / p(next) of n pairs int64 [n], [n] of ids below ``size``.

    p(next | previous) is smoothed with ``smoothing`` draws from p(next), so that a pair never seen after a rare token
    weighs little: (count + s p) / (total + s).
    """
    counts = torch.zeros(size, size).index_put_(
        (previous, following), torch.ones(len(previous)), accumulate=True
    )
    unigram = counts.sum(0) + 0.1
    unigram /= unigram.sum()
    conditional = (counts + smoothing * unigram) / (counts.sum(1, keepdim=True) + smoothing)
    return (conditional / unigram).log()


def fit(
    previous: Tensor, following: Tensor, rows: int, rank: int, smoothing: float = 5.0
) -> tuple[Tensor, Tensor]:
    """(W1, W2), fp32 [rows, rank] each, with W1 W2^T the best rank-``rank`` fit (SVD) of the table above.

    ``previous`` and ``following`` int64 [n] are neighbouring tokens. Tokens that never occur, or are not among the
    ``LARGEST`` most frequent, have zero rows: no bias. Uses torch's global generator (randomised SVD).
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
