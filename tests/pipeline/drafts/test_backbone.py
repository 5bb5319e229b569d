import pytest
import tiny
import torch

from pipeline.drafts.base import Blocks


@torch.no_grad()
def test_inputs_are_the_anchor_and_mask_tokens() -> None:
    draft = tiny.draft()
    x = draft.inputs(torch.tensor([7, 9]))
    assert torch.equal(x[1, 0], draft.embed_tokens.weight[9])
    assert torch.equal(x[0, 1:], draft.embed_tokens.weight[260].expand(6, -1))


@torch.no_grad()
@pytest.mark.parametrize("window", [None, 8])
def test_observing_in_pieces_equals_observing_at_once(window: int | None) -> None:
    draft = tiny.draft(sliding_window=window)
    batch = tiny.batch([300])
    states = []
    for pieces in ((0, 300), (0, 3, 258, 300)):  # the second way grows its buffers twice
        state = draft.start()
        for first, last in zip(pieces, pieces[1:], strict=False):
            part = slice(first, last)
            draft.observe(state, batch.input_ids[0, part], batch.hidden[0, part], batch.last_hidden[0, part])
        states.append(draft.draft([state], torch.tensor([5])))
        assert state.length == 300
    assert torch.allclose(states[0], states[1], atol=1e-5)


@torch.no_grad()
def test_conventions_share_the_backbone() -> None:
    """In the same block of five slots, anchor-first drafts with all slots, 1+N with all but the anchor's."""
    first, fill_in = (
        tiny.draft("dflash", block_size=5),
        tiny.draft("dflash", block_size=5, sample_from_anchor=False),
    )
    assert (first.max_drafts, fill_in.max_drafts) == (5, 4)
    batch, blocks = tiny.batch([20]), Blocks(torch.tensor([[4, 9]]), torch.tensor([[True, True]]))
    whole, less = first.block_states(batch, blocks), fill_in.block_states(batch, blocks)
    assert whole.shape == (1, 2, 5, 32) and torch.equal(whole[:, :, 1:], less)


@torch.no_grad()
def test_rows_that_are_not_kept_are_zero() -> None:
    draft, batch = tiny.draft(), tiny.batch([20, 15])
    blocks = Blocks(torch.tensor([[4, 9], [3, 3]]), torch.tensor([[True, True], [True, False]]))
    states = draft.block_states(batch, blocks)
    assert not states[1, 1].any() and states[1, 0].any()
