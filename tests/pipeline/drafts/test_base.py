import pytest
import tiny
import torch

from pipeline.drafts.base import Batch, Blocks, accepted_length, supervise


def test_supervision_stops_at_the_first_token_that_is_no_answer() -> None:
    """Pitfalls 1 and 3: the mask is that of the label's token."""
    batch = tiny.batch([12])
    mask = torch.zeros(1, 12, dtype=torch.bool)
    mask[0, [4, 5, 6, 9]] = True
    batch = Batch(**{**batch.__dict__, "loss_mask": mask})
    s = supervise(batch, Blocks(torch.tensor([[3, 8, 6]]), torch.ones(1, 3, dtype=torch.bool)), 4, 4.0)
    assert s.mask[0].tolist() == [[True, True, True, False], [True, False, False, False], [False] * 4]
    assert s.labels[0, 0, :3].tolist() == batch.input_ids[0, 4:7].tolist()
    assert s.weights[0, 0].tolist() == pytest.approx([1.0, 0.7788008, 0.6065307, 0.0])


def test_accepted_length_counts_the_bonus_and_leaves_padding_out() -> None:
    acceptance = torch.tensor([[[1.0, 0.5, 0.5], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]])
    keep = torch.tensor([[True, True, False]])
    assert accepted_length(acceptance, keep).item() == pytest.approx((1 + 1 + 0.5 + 0.25) + 1)
