"""Drafters that draft one token after another."""

import pytest
import tiny
import torch

from pipeline.drafts.base import Batch, Blocks


@torch.no_grad()
@pytest.mark.parametrize("algorithm", ["eagle3", "mtp"])
def test_the_first_draft_reads_the_state_before_the_anchor(algorithm: str) -> None:
    """Pair anchor-1 is the last one with a state of the target.

    It has the state at anchor-1 and the token at the anchor, whose own state does not exist when the block is drafted.
    """
    draft, batch = tiny.draft(algorithm), tiny.batch([20])
    blocks = Blocks(torch.tensor([[9]]), torch.tensor([[True]]))
    before = draft.block_states(batch, blocks)
    for position, changes in ((9, False), (8, True)):
        hidden, last = batch.hidden.clone(), batch.last_hidden.clone()
        hidden[0, position] += 1.0
        last[0, position] += 1.0
        other = Batch(**{**batch.__dict__, "hidden": hidden, "last_hidden": last})
        assert torch.equal(before, draft.block_states(other, blocks)) is not changes
    ids = batch.input_ids.clone()
    ids[0, 10] = (ids[0, 10] + 1) % 200  # the token after the anchor: label of draft 1, input of draft 2
    after = draft.block_states(Batch(**{**batch.__dict__, "input_ids": ids}), blocks)
    assert torch.equal(before[0, 0, 0], after[0, 0, 0]) and not torch.allclose(
        before[0, 0, 1], after[0, 0, 1]
    )


@torch.no_grad()
def test_only_the_asked_steps_are_made() -> None:
    draft, batch = tiny.draft("eagle3"), tiny.batch([20])
    blocks = Blocks(torch.tensor([[9]]), torch.tensor([[True]]))
    whole, part = draft.block_states(batch, blocks), draft.block_states(batch, blocks, 3)
    assert torch.allclose(whole[:, :, :3], part[:, :, :3], atol=1e-6) and not part[:, :, 3:].any()


@torch.no_grad()
@pytest.mark.parametrize("window", [None, 8])
def test_observing_in_pieces_equals_observing_at_once(window: int | None) -> None:
    draft, batch = tiny.draft("eagle3", sliding_window=window), tiny.batch([300])
    logits = []
    for pieces in ((0, 300), (0, 1, 2, 258, 300)):
        state = draft.start()
        for first, last in zip(pieces, pieces[1:], strict=False):
            part = slice(first, last)
            draft.observe(state, batch.input_ids[0, part], batch.hidden[0, part], batch.last_hidden[0, part])
        assert state.length == 299, "pair 299 waits for the token after it"
        step = draft.begin([state], torch.tensor([5]))
        logits.append(torch.cat([step(torch.tensor([token]))[0] for token in (5, 9, 200)]))
    assert torch.allclose(logits[0], logits[1], atol=1e-4)


def test_an_anchor_at_0_gives_finite_states() -> None:
    """Only padding has such an anchor, with weight 0, and 0 times NaN would be NaN."""
    draft = tiny.draft("eagle3")
    states = draft.block_states(tiny.batch([5]), Blocks(torch.tensor([[0]]), torch.tensor([[True]])))
    assert states.isfinite().all()
