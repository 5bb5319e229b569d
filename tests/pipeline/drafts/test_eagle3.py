import math

import pytest
import tiny
import torch

from pipeline.drafts import registry
from pipeline.drafts.base import Blocks, supervise


@torch.no_grad()
def test_eagle3_keeps_the_residual_before_its_norm() -> None:
    """The residual stream is the state itself; hidden_norm is for the projections only."""
    draft = tiny.draft("eagle3")
    embedded, state = torch.randn(3, 32), torch.randn(3, 32) * 5
    residual, entered = draft.enter(embedded, state)
    assert torch.equal(residual, state)
    halves = entered.split(32, -1)
    assert torch.allclose(halves[0], draft.layer.input_layernorm(embedded), atol=1e-6)
    assert torch.allclose(halves[1].square().mean(-1), torch.ones(3), atol=1e-2)


def test_eagle3_weighs_a_step_with_0_8_of_the_one_before() -> None:
    how, batch = registry.supervised(tiny.drafter("eagle3", block_size=4)), tiny.batch([20])
    weights = supervise(batch, Blocks(torch.tensor([[5]]), torch.tensor([[True]])), 4, how.decay).weights
    assert weights[0, 0].tolist() == pytest.approx([1.0, 0.8, 0.64, 0.512])
    assert how.decay == pytest.approx(-1 / math.log(0.8))
