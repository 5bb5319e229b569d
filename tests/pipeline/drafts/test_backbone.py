import tiny
import torch


@torch.no_grad()
def test_inputs_are_the_anchor_and_mask_tokens() -> None:
    draft = tiny.draft()
    x = draft.inputs(torch.tensor([7, 9]))
    assert torch.equal(x[1, 0], draft.embed_tokens.weight[9])
    assert torch.equal(x[0, 1:], draft.embed_tokens.weight[260].expand(6, -1))


@torch.no_grad()
def test_observing_in_pieces_equals_observing_at_once() -> None:
    draft = tiny.draft()
    batch = tiny.batch([300])
    states = []
    for pieces in ((0, 300), (0, 3, 258, 300)):  # the second grows its buffers twice
        state = draft.start()
        for first, last in zip(pieces, pieces[1:], strict=False):
            draft.observe(
                state,
                batch.input_ids[0, first:last],
                batch.hidden[0, first:last],
                batch.last_hidden[0, first:last],
            )
        states.append(draft.draft(state, torch.tensor([5])))
        assert state.length == 300
    assert torch.allclose(states[0], states[1], atol=1e-5)
