import pytest
import tiny
import torch

from pipeline.drafts.base import Batch, Blocks, LossWeights, supervise
from pipeline.sampling import Sampler

PAPER = LossWeights(0.1, 0.9, 1.0)


def uneven_batch(seed: int = 0) -> tuple[Batch, Blocks]:
    """Two sequences of 30 and 19 tokens; three and two blocks."""
    batch = tiny.batch([30, 19], seed=seed)
    anchors = torch.tensor([[4, 11, 20], [6, 9, 0]])
    return batch, Blocks(anchors, torch.tensor([[True, True, True], [True, True, False]]))


def run(draft, batch: Batch, blocks: Blocks):
    return draft.loss(batch, blocks, supervise(batch, blocks, draft.block_size, 7.0), PAPER)


def test_states_at_and_after_the_anchor_do_not_reach_the_block() -> None:
    """Must hold 3, pitfall 24: changing target states at positions >= anchor leaves that block's logits unchanged."""
    draft = tiny.draft()
    batch, blocks = uneven_batch()
    changed = batch.hidden.clone()
    changed[0, 11:] += 5.0
    other = Batch(**{**batch.__dict__, "hidden": changed})
    before, after = (draft.block_states(b, blocks) for b in (batch, other))
    assert torch.equal(before[0, :2], after[0, :2])
    assert not torch.allclose(before[0, 2], after[0, 2]), "the block at 20 does see positions 11 .. 19"


def test_blocks_do_not_see_each_other() -> None:
    draft = tiny.draft()
    batch, blocks = uneven_batch()
    alone = Blocks(blocks.anchors[:, 1:2], blocks.keep[:, 1:2])
    together = draft.block_states(batch, blocks)[:, 1:2]
    assert torch.allclose(together, draft.block_states(batch, alone), atol=1e-5)


@pytest.mark.parametrize("attention", ["dense", "grouped"])
def test_batched_equals_single(attention: str) -> None:
    draft = tiny.draft()
    draft.attention = attention
    batch, blocks = uneven_batch()
    both = run(draft, batch, blocks)
    singles = []
    for i in (0, 1):
        n = int(batch.lengths[i])
        one = Batch(*(getattr(batch, f)[i : i + 1] for f in batch.__dataclass_fields__))
        one = Batch(
            one.input_ids[:, :n],
            one.loss_mask[:, :n],
            one.lengths,
            one.hidden[:, :n],
            one.last_hidden[:, :n],
            one.samples,
        )
        singles.append(run(draft, one, Blocks(blocks.anchors[i : i + 1], blocks.keep[i : i + 1])))
    assert both.total.item() == pytest.approx(sum(s.total.item() for s in singles), rel=1e-5)


def test_a_batch_without_slots_has_a_graph_to_every_trainable_tensor() -> None:
    """Pitfall 30: a rank without anchors takes part in the backward pass with zero gradients."""
    draft = tiny.draft().train()
    batch, blocks = uneven_batch()
    terms = run(draft, batch, Blocks(blocks.anchors, torch.zeros_like(blocks.keep)))
    terms.total.backward()
    assert terms.total.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in draft.trainable_parameters())


def test_embedding_and_head_stay_frozen() -> None:
    draft = tiny.draft()
    frozen = {name for name, p in draft.named_parameters() if not p.requires_grad}
    assert frozen == {"embed_tokens.weight", "lm_head.weight"}


@torch.no_grad()
def test_drafting_equals_the_training_forward_pass() -> None:
    """Teacher forcing on the drafted tokens gives the logits that they were drawn from (cache, positions, mask)."""
    draft = tiny.draft().eval()
    batch, _ = uneven_batch()
    state = draft.start()
    for part in (slice(0, 5), slice(5, 12)):  # observed in two pieces
        draft.observe(state, batch.input_ids[0, part], batch.hidden[0, part], batch.last_hidden[0, part])
    proposal = draft.propose(state, int(batch.input_ids[0, 12]), Sampler(0.0))
    ids = torch.cat([batch.input_ids[0, :13], proposal.tokens])[None]
    longer = Batch(
        ids,
        torch.ones_like(ids, dtype=torch.bool),
        torch.tensor([20]),
        batch.hidden[:1],
        batch.last_hidden[:1],
        batch.samples[:1],
    )
    blocks = Blocks(torch.tensor([[12]]), torch.tensor([[True]]))
    features = draft.features(ids[:, None, 12:19])
    states = draft.block_states(longer, blocks)
    assert torch.equal(draft.logits(states, features).argmax(-1)[0, 0], proposal.tokens)
    assert torch.allclose(
        torch.sigmoid(draft.confidence(states, features))[0, 0], proposal.confidences, atol=1e-5
    )


@torch.no_grad()
def test_limit_and_threshold_cut_the_chain() -> None:
    draft = tiny.draft().eval()
    state = draft.start()
    batch, _ = uneven_batch()
    draft.observe(state, batch.input_ids[0, :9], batch.hidden[0, :9], batch.last_hidden[0, :9])
    whole = draft.propose(state, 7, Sampler(0.0))
    assert len(whole.tokens) == 7
    assert torch.equal(draft.propose(state, 7, Sampler(0.0), limit=3).tokens, whole.tokens[:3])
    threshold = float(whole.confidences[2]) + 1e-6
    expected = next(k for k in range(7) if whole.confidences[k] < threshold)
    assert len(draft.propose(state, 7, Sampler(0.0), threshold=threshold).tokens) == expected
    assert len(draft.propose(state, 7, Sampler(0.0), threshold=1.1).tokens) == 0


def test_uneven_batch_is_finite_on_every_backend() -> None:
    """Pitfall 27."""
    batch, blocks = uneven_batch()
    totals = []
    for attention in ("dense", "grouped"):
        draft = tiny.draft().train()
        draft.attention = attention
        terms = run(draft, batch, blocks)
        terms.total.backward()
        assert all(p.grad.isfinite().all() for p in draft.trainable_parameters())
        totals.append(terms.total.item())
    assert totals[0] == pytest.approx(totals[1], abs=1e-4)


def test_the_confidence_head_learns_nothing_without_a_label() -> None:
    """A run that starts with cross-entropy alone must not teach it that everything is accepted."""
    draft = tiny.draft().train()
    batch, blocks = uneven_batch()
    supervision = supervise(batch, blocks, draft.block_size, 7.0)
    terms = draft.loss(batch, blocks, supervision, LossWeights(1.0, 0.0, 0.0))
    terms.total.backward()
    assert terms.acceptance is None and terms.confidence.item() == 0
    assert not draft.confidence_head.proj.weight.grad.any()
    labelled = draft.loss(batch, blocks, supervision, LossWeights(1.0, 0.0, 1.0))
    assert labelled.acceptance is not None and labelled.confidence.item() > 0
