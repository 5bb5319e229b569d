import math

import pytest
import torch

from pipeline.drafts.starts import bigram

PREVIOUS = torch.tensor([1, 1, 1, 2, 2, 3])
FOLLOWING = torch.tensor([2, 2, 3, 1, 1, 1])


def test_information_of_a_counted_pair() -> None:
    table = bigram.pointwise_information(PREVIOUS, FOLLOWING, 4, 2.0)
    p = torch.tensor([0.1, 3.1, 2.1, 1.1]) / 6.4  # the smoothed frequencies of the following tokens
    assert table[1, 2].item() == pytest.approx(math.log((2 + 2 * p[2]) / (3 + 2) / p[2]), rel=1e-5)
    assert table[2, 3].item() == pytest.approx(math.log(2 / 4), rel=1e-5), (
        "never seen after 2: s p / (total + s) / p"
    )


def test_full_rank_fit_is_the_table() -> None:
    torch.manual_seed(0)
    w1, w2 = bigram.fit(PREVIOUS, FOLLOWING, rows=10, rank=3, smoothing=2.0)
    frequency_order = [1, 2, 3]
    place = {token: i for i, token in enumerate(frequency_order)}
    table = bigram.pointwise_information(
        torch.tensor([place[int(t)] for t in PREVIOUS]),
        torch.tensor([place[int(t)] for t in FOLLOWING]),
        3,
        2.0,
    )
    assert torch.allclose((w1 @ w2.T)[1:4, 1:4], table, atol=1e-4)
    assert not w1[4:].any() and not w2[0].any(), "tokens that never occur get no bias"


def test_more_rank_than_tokens_and_no_pairs() -> None:
    w1, w2 = bigram.fit(PREVIOUS, FOLLOWING, rows=10, rank=8)
    assert w1.shape == (10, 8) and w1.isfinite().all() and not w1[:, 3:].any()
    empty = torch.empty(0, dtype=torch.long)
    assert not bigram.fit(empty, empty, 10, 4)[0].any()
