import dataclasses

import pytest
import tiny
import torch

from pipeline.drafts.base import Batch, Blocks, LossWeights, supervise

PAPER = LossWeights(0.1, 0.9, 1.0)
BLOCKS = Blocks(
    torch.tensor([[4, 11, 20], [6, 9, 0]]), torch.tensor([[True, True, True], [True, True, False]])
)


def uneven() -> Batch:
    return tiny.batch([30, 19])


def test_blocks_do_not_see_each_other() -> None:
    draft, batch = tiny.draft(), uneven()
    alone = Blocks(BLOCKS.anchors[:, 1:2], BLOCKS.keep[:, 1:2])
    together = draft.block_states(batch, BLOCKS)[:, 1:2]
    assert torch.allclose(together, draft.block_states(batch, alone), atol=1e-5)


def test_head_inputs_are_the_tokens_before() -> None:
    """The token before draft k of the block at 11 is at 11+k; beyond the sequence the last token takes its place."""
    draft, batch = tiny.draft(), uneven()
    states = draft.block_states(batch, BLOCKS)
    embedded, features = draft.head_inputs(batch, BLOCKS, states)
    assert torch.equal(embedded[0, 1], draft.markov_head.markov_w1(batch.input_ids[0, 11:18]))
    assert embedded.shape == features.shape == (2, 3, 7, 8)
    assert tiny.draft("dflash").head_inputs(batch, BLOCKS, states) == (None, None)


def test_the_confidence_head_learns_nothing_without_a_label() -> None:
    """A run that starts with cross-entropy alone must not teach the head that everything is accepted."""
    draft, batch = tiny.draft().train(), uneven()
    supervision = supervise(batch, BLOCKS, draft.max_drafts, 7.0)
    terms = draft.loss(batch, BLOCKS, supervision, LossWeights(1.0, 0.0, 0.0))
    terms.total.backward()
    assert terms.acceptance is None and terms.confidence.item() == 0
    assert not draft.confidence_head.proj.weight.grad.any()
    labelled = draft.loss(batch, BLOCKS, supervision, LossWeights(1.0, 0.0, 1.0))
    assert labelled.acceptance is not None and labelled.confidence.item() > 0


def test_dflash_compares_with_the_target_only_where_the_loss_does() -> None:
    draft, batch = tiny.draft("dflash").train(), uneven()
    supervision = supervise(batch, BLOCKS, draft.max_drafts, 7.0)
    assert draft.loss(batch, BLOCKS, supervision, LossWeights(1.0, 0.0, 1.0)).acceptance is None
    assert draft.loss(batch, BLOCKS, supervision, PAPER).acceptance is not None
    assert draft.eval().loss(batch, BLOCKS, supervision, LossWeights(1.0, 0.0, 0.0)).acceptance is not None


@torch.no_grad()
def test_confidence_is_compared_with_the_acceptance_rate() -> None:
    """L = sum w BCE(c, 1 - TV), computed by hand from the acceptance that the loss reports."""
    draft, batch = tiny.draft().eval(), uneven()
    supervision = supervise(batch, BLOCKS, draft.max_drafts, 7.0)
    terms = draft.loss(batch, BLOCKS, supervision, PAPER)
    states = draft.block_states(batch, BLOCKS)
    c = torch.sigmoid(draft.confidence(states, draft.head_inputs(batch, BLOCKS, states)[0]))
    label = terms.acceptance
    each = -(label * c.log() + (1 - label) * (1 - c).log()) * supervision.weights
    assert terms.confidence.item() == pytest.approx(each.sum().item(), rel=1e-4)
    assert terms.total.item() == pytest.approx(
        (0.1 * terms.ce + 0.9 * terms.l1 + terms.confidence).item(), rel=1e-5
    )


@torch.no_grad()
def test_sampled_labels_are_what_the_coins_decide() -> None:
    """Coins of 0 accept every draft and coins of 1 none; in between, coins below the acceptance rate accept."""
    draft, batch = tiny.draft(confidence_label="sampled").eval(), uneven()
    plain = supervise(batch, BLOCKS, draft.max_drafts, 7.0)
    states = draft.block_states(batch, BLOCKS)
    c = torch.sigmoid(draft.confidence(states, draft.head_inputs(batch, BLOCKS, states)[0]))
    rate = draft.loss(batch, BLOCKS, plain, PAPER).acceptance
    half = torch.full_like(plain.weights, float(rate[plain.mask].median()))
    for coins in (torch.zeros_like(half), torch.ones_like(half), half):
        terms = draft.loss(batch, BLOCKS, dataclasses.replace(plain, coins=coins), PAPER)
        label = (coins < rate).float()
        each = -(label * c.log() + (1 - label) * (1 - c).log()) * plain.weights
        assert terms.confidence.item() == pytest.approx(each.sum().item(), rel=1e-4)
        assert torch.equal(terms.acceptance, rate), "what is reported stays the rate"


def test_with_a_reduced_vocabulary_confidence_is_of_what_the_draft_can_propose() -> None:
    """If the target is certain of a token that the draft does not have, it accepts nothing."""
    ids = torch.arange(0, 272, 2)
    draft, batch = tiny.draft(ids=ids).eval(), uneven()
    odd = draft.target_head[101] / draft.target_head[101].square().sum() * 200  # logit 200 for token 101
    sure = Batch(**{**batch.__dict__, "last_hidden": odd.expand_as(batch.last_hidden)})
    with torch.no_grad():
        terms = draft.loss(sure, BLOCKS, supervise(sure, BLOCKS, 7, 7.0), PAPER)
    assert terms.acceptance.max() < 1e-6 and not terms.agreement.any()


def test_embedding_and_head_stay_frozen() -> None:
    draft = tiny.draft()
    frozen = {name for name, p in draft.named_parameters() if not p.requires_grad}
    assert frozen == {"embed_tokens.weight", "lm_head.weight"}
