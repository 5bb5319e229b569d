"""Drafters that draft one token after another, against transformers' own layer over the whole prefix."""

import pytest
import tiny
import torch
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from pipeline.drafts.base import Batch, Blocks


def theirs(draft):
    """The target family's layer with the draft's weights."""
    draft.config._attn_implementation = "eager"
    layer = Qwen3DecoderLayer(draft.config, 0)
    layer.load_state_dict(draft.layer.state_dict())
    return layer


@torch.no_grad()
def test_mtp_straight_down() -> None:
    """DeepSeek-V3's module over the sequence so far, once a draft: pairs of the target's states up to anchor - 1, then
    pairs of the own states. One causal pass of the target's layer over all pairs; the last output is the draft's state.
    """
    draft, batch = tiny.draft("mtp", num_taps=0), tiny.batch([20], taps=0)
    layer, anchor = theirs(draft), 9
    ids, w = batch.input_ids[0], draft.state_dict()

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w[name]

    states, found = list(batch.last_hidden[0, :anchor]), []
    for k in range(7):
        embedded = w["embed_tokens.weight"][ids[1 : anchor + 1 + k]]  # the token after each pair's position
        both = torch.cat([norm(embedded, "enorm.weight"), norm(torch.stack(states), "hnorm.weight")], -1)
        x, positions = (both @ w["eh_proj.weight"].T)[None], torch.arange(anchor + k)[None]
        cos, sin = (t.squeeze(2) for t in draft.rotary(x, positions, "full_attention"))
        causal = torch.full((anchor + k,) * 2, float("-inf")).triu(1)[None, None]
        out = layer(x, position_embeddings=(cos, sin), attention_mask=causal)[0, -1]
        states.append(norm(out, "norm.weight"))
        found.append(states[-1])
    got = draft.block_states(batch, Blocks(torch.tensor([[anchor]]), torch.tensor([[True]])))
    assert torch.allclose(got[0, 0], torch.stack(found), atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("algorithm", ["eagle3", "mtp"])
def test_the_first_draft_reads_the_state_before_the_anchor(algorithm: str) -> None:
    """Pair anchor-1 (state there, token at the anchor) is the last that the target gives; the anchor's own state is not
    there yet when the block is drafted.
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
    ids[0, 10] = (
        ids[0, 10] + 1
    ) % 200  # the token after the anchor: the second draft's input, the first one's label
    after = draft.block_states(Batch(**{**batch.__dict__, "input_ids": ids}), blocks)
    assert torch.equal(before[0, 0, 0], after[0, 0, 0]) and not torch.allclose(
        before[0, 0, 1], after[0, 0, 1]
    )


@torch.no_grad()
def test_steps_that_nobody_asks_for_are_not_made() -> None:
    draft, batch = tiny.draft("eagle3"), tiny.batch([20])
    blocks = Blocks(torch.tensor([[9]]), torch.tensor([[True]]))
    whole, part = draft.block_states(batch, blocks), draft.block_states(batch, blocks, 3)
    assert torch.allclose(whole[:, :, :3], part[:, :, :3], atol=1e-6) and not part[:, :, 3:].any()


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


def test_an_anchor_without_a_state_before_it_is_a_filler_s() -> None:
    """Finite, whatever it is: its slots weigh nothing."""
    draft = tiny.draft("eagle3")
    states = draft.block_states(tiny.batch([5]), Blocks(torch.tensor([[0]]), torch.tensor([[True]])))
    assert states.isfinite().all()
