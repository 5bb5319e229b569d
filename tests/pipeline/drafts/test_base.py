import pytest
import tiny
import torch

from pipeline.drafts.base import Batch, Blocks, accepted_length, supervise


def masked(*answers: int) -> Batch:
    """A batch of twelve tokens, of which the target generated ``answers``."""
    batch = tiny.batch([12])
    mask = torch.zeros(1, 12, dtype=torch.bool)
    mask[0, list(answers)] = True
    return Batch(**{**batch.__dict__, "loss_mask": mask})


def test_supervision_stops_at_the_first_token_that_is_no_answer() -> None:
    """Pitfalls 1 and 3: the mask follows the label's token."""
    batch = masked(4, 5, 6, 9)
    s = supervise(batch, Blocks(torch.tensor([[3, 8, 6]]), torch.ones(1, 3, dtype=torch.bool)), 4, 4.0)
    assert s.mask[0].tolist() == [[True, True, True, False], [True, False, False, False], [False] * 4]
    assert s.labels[0, 0, :3].tolist() == batch.input_ids[0, 4:7].tolist()
    assert s.weights[0, 0].tolist() == pytest.approx([1.0, 0.7788008, 0.6065307, 0.0])
    assert s.coins is None


def test_drafts_beyond_the_trained_ones_weigh_nothing() -> None:
    """They keep their labels, because the held-out evaluation measures how often they would be accepted."""
    batch = masked(4, 5, 6, 7, 8)
    blocks = Blocks(torch.tensor([[3]]), torch.ones(1, 1, dtype=torch.bool))
    s = supervise(batch, blocks, 4, 4.0, trained=1)
    assert s.weights[0, 0].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert s.mask[0, 0].tolist() == [True] * 4
    assert s.labels[0, 0].tolist() == batch.input_ids[0, 4:8].tolist()
    assert supervise(batch, blocks, 4, 4.0, trained=4).weights.gt(0).all()


def test_where_keeps_what_is_wanted_of_the_kept() -> None:
    blocks = Blocks(torch.tensor([[1, 2, 3]]), torch.tensor([[True, True, False]]))
    assert blocks.where(torch.tensor([[False, True, True]])).keep.tolist() == [[False, True, False]]


def test_accepted_length_counts_the_bonus_and_leaves_padding_out() -> None:
    acceptance = torch.tensor([[[1.0, 0.5, 0.5], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]])
    keep = torch.tensor([[True, True, False]])
    assert accepted_length(acceptance, keep).item() == pytest.approx((1 + 1 + 0.5 + 0.25) + 1)
