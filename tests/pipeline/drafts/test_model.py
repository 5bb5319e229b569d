"""What all drafters share: the loss over supervised drafts, and drafting from left to right.

tests/test_drafters.py tests every drafter as a whole.
"""

import copy
import dataclasses

import pytest
import tiny
import torch

from pipeline.decoding.sampling import Sampler
from pipeline.drafts import registry
from pipeline.drafts.base import Batch, Blocks, LossWeights, supervise
from pipeline.drafts.model import append
from pipeline.drafts.registry import Start

ALL = LossWeights(0.1, 0.9, 1.0, 0.5)
IDS = torch.arange(0, 272, 3)
KINDS = {
    "dspark": ("dspark", {}), "rnn": ("dspark", {"markov_head": "rnn", "learned_start": True}),
    "dflash": ("dflash", {}), "fill_in": ("dflash", {"sample_from_anchor": False}),
    "eagle3": ("eagle3", {}), "mtp": ("mtp", {"num_taps": 0}),
    "gemma4": ("dspark", {"family": "gemma4"}), "reduced": ("dspark", {"ids": IDS}),
    "reduced_eagle3": ("eagle3", {"ids": IDS}), "window": ("eagle3", {"sliding_window": 8}),
}  # fmt: skip
each_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind: str, **changes: object):
    algorithm, fixed = KINDS[kind]
    return tiny.draft(algorithm, **(fixed | changes))


def uneven_batch(draft) -> tuple[Batch, Blocks]:
    """Two sequences of 30 and 19 tokens with three and two blocks."""
    batch = tiny.batch([30, 19], taps=len(draft.config.target_layer_ids))
    anchors, keep = [[4, 11, 20], [6, 9, 0]], [[True, True, True], [True, True, False]]
    return batch, Blocks(torch.tensor(anchors), torch.tensor(keep))


def run(draft, batch: Batch, blocks: Blocks, weights: LossWeights = ALL, trained: int | None = None):
    return draft.loss(batch, blocks, supervise(batch, blocks, draft.max_drafts, 7.0, trained), weights, 16)


@each_kind
def test_a_batch_without_slots_has_a_graph_to_every_trainable_tensor(kind: str) -> None:
    """Pitfall 30: a rank without anchors takes part in the backward pass with zero gradients."""
    draft = make(kind).train()
    batch, blocks = uneven_batch(draft)
    terms = run(draft, batch, Blocks(blocks.anchors, torch.zeros_like(blocks.keep)))
    terms.total.backward()
    assert terms.total.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in draft.trainable_parameters())
    assert terms.acceptance.shape == (2, 3, draft.max_drafts) and not terms.acceptance.any()


@each_kind
def test_every_trainable_tensor_has_a_gradient_and_backends_agree(kind: str) -> None:
    """Pitfall 27."""
    totals, gradients = [], []
    for attention in ("dense", "grouped"):
        draft = make(kind).train()
        draft.attention = attention
        terms = run(draft, *uneven_batch(draft))
        terms.total.backward()
        totals.append(terms.total.item())
        gradients.append({n: p.grad for n, p in draft.named_parameters() if p.requires_grad})
    assert totals[0] == pytest.approx(totals[1], rel=1e-5)
    for name, gradient in gradients[0].items():
        assert gradient is not None and gradient.isfinite().all() and gradient.any(), name
        assert torch.allclose(gradient, gradients[1][name], atol=1e-3 * gradient.abs().max().item()), name


@each_kind
def test_what_counts_is_scattered_to_its_slot(kind: str) -> None:
    draft = make(kind).eval()
    batch, blocks = uneven_batch(draft)
    with torch.no_grad():
        terms = run(draft, batch, blocks)
    mask = supervise(batch, blocks, draft.max_drafts, 7.0).mask
    assert terms.acceptance[mask].gt(0).all() and not terms.acceptance[~mask].any()
    assert set(terms.agreement.unique().tolist()) <= {0.0, 1.0} and not terms.agreement[~mask].any()


def test_training_makes_no_step_that_has_no_loss() -> None:
    """A chain with one trained draft runs its layer once in training, and once for each draft in an evaluation."""
    draft = tiny.draft("mtp", num_taps=0, train_steps=1)
    steps = []
    follow = draft.follow
    draft.follow = lambda out: (steps.append(1), follow(out))[1]
    batch, blocks = uneven_batch(draft)
    run(draft.train(), batch, blocks, trained=1)
    assert len(steps) == 1
    steps.clear()
    with torch.no_grad():
        terms = run(draft.eval(), batch, blocks, trained=1)
    assert len(steps) == 7 and terms.acceptance[0, 0].gt(0).all()


def observed(draft, batch: Batch, *pieces: int):
    state = draft.start()
    for first, last in zip(pieces, pieces[1:], strict=False):
        part = slice(first, last)
        draft.observe(state, batch.input_ids[0, part], batch.hidden[0, part], batch.last_hidden[0, part])
    return state


@each_kind
@torch.no_grad()
def test_drafting_equals_the_training_forward_pass(kind: str) -> None:
    """Teacher forcing on the drafted tokens gives the logits from which they were drawn (cache, positions, mask)."""
    draft = make(kind).eval()
    batch, _ = uneven_batch(draft)
    state = observed(draft, batch, 0, 1, 5, 12)  # in three pieces, of which the first is one token
    proposal = draft.propose(state, int(batch.input_ids[0, 12]), Sampler(0.0))
    assert len(proposal.tokens) == draft.max_drafts
    ids = torch.cat([batch.input_ids[0, :13], proposal.tokens, torch.zeros(1, dtype=torch.int64)])[None]
    n = ids.shape[1]
    one = (
        torch.ones_like(ids, dtype=torch.bool),
        torch.tensor([n]),
        batch.hidden[:1, :n],
        batch.last_hidden[:1, :n],
    )
    longer = Batch(ids, *one, batch.samples[:1])
    blocks = Blocks(torch.tensor([[12]]), torch.tensor([[True]]))
    states = draft.block_states(longer, blocks)
    embedded, features = draft.head_inputs(longer, blocks, states)
    logits = draft.logits(states) + (0 if features is None else draft.markov_head.bias(features))
    modes = logits.argmax(-1)[0, 0]
    assert torch.equal(modes if draft.ids is None else draft.ids[modes], proposal.tokens)
    if draft.learns_confidence:
        expected = torch.sigmoid(draft.confidence(states, embedded))[0, 0]
        assert torch.allclose(expected, proposal.confidences, atol=1e-5)
    else:
        assert proposal.confidences is None
    sampled = draft.propose(
        state, int(batch.input_ids[0, 12]), Sampler(1.0), torch.Generator().manual_seed(0)
    )
    spread = logits[0, 0, 0].softmax(-1)
    whole = spread if draft.ids is None else torch.zeros(272).index_copy(0, draft.ids, spread)
    assert sampled.probabilities.shape == (draft.max_drafts, 272)
    assert torch.allclose(sampled.probabilities[0], whole, atol=1e-5)


@each_kind
@torch.no_grad()
def test_drafting_leaves_the_state_as_it_was(kind: str) -> None:
    """Tokens that were drafted but not verified are not observed."""
    draft = make(kind).eval()
    batch, _ = uneven_batch(draft)
    state = observed(draft, batch, 0, 9)
    first = draft.propose(state, 7, Sampler(0.0))
    assert torch.equal(draft.propose(state, 7, Sampler(0.0)).tokens, first.tokens)
    assert torch.equal(draft.propose(state, 7, Sampler(0.0), limit=3).tokens, first.tokens[:3])
    nothing = draft.propose(state, 7, Sampler(1.0), limit=0)
    assert nothing.tokens.shape == (0,) and nothing.probabilities.shape == (0, 272)


@each_kind
@torch.no_grad()
def test_sequences_are_drafted_together_as_each_alone(kind: str) -> None:
    """Contexts of 9 and 21 positions are observed together and in two pieces."""
    draft = make(kind).eval()
    batch, _ = uneven_batch(draft)
    rows, lengths, together = (1, 0), (9, 21), [draft.start(), draft.start()]
    for first, last in (((0, 0), (4, 1)), ((4, 1), lengths)):
        spans = list(zip(rows, first, last, strict=True))
        parts = [
            torch.cat([x[r, a:b] for r, a, b in spans])
            for x in (batch.input_ids, batch.hidden, batch.last_hidden)
        ]
        draft.observe_all(together, [b - a for _, a, b in spans], *parts)
    made = draft.propose_all(together, torch.tensor([7, 5]), Sampler(0.0))
    assert made.tokens.shape == (2, draft.max_drafts)
    for i, anchor in enumerate((7, 5)):
        state, whole = draft.start(), slice(lengths[i])
        draft.observe(state, *(x[rows[i], whole] for x in (batch.input_ids, batch.hidden, batch.last_hidden)))
        alone = draft.propose(state, anchor, Sampler(0.0))
        assert torch.equal(made.tokens[i], alone.tokens)
        if alone.confidences is not None:
            assert torch.allclose(made.confidences[i], alone.confidences, atol=1e-5)
    sampled = draft.propose_all(together, torch.tensor([7, 5]), Sampler(1.0), limit=2)
    assert sampled.probabilities.shape == (2, 2, 272)
    assert torch.allclose(sampled.probabilities.sum(-1), torch.ones(2, 2))


@torch.no_grad()
def test_a_threshold_cuts_the_chain() -> None:
    draft = tiny.draft().eval()
    batch, _ = uneven_batch(draft)
    state = observed(draft, batch, 0, 9)
    whole = draft.propose(state, 7, Sampler(0.0))
    threshold = float(whole.confidences[2]) + 1e-6
    expected = next(k for k in range(7) if whole.confidences[k] < threshold)
    assert len(draft.propose(state, 7, Sampler(0.0), thresholds=[threshold] * 7).tokens) == expected
    assert len(draft.propose(state, 7, Sampler(0.0), thresholds=[1.1]).tokens) == 0
    draft.confidence_head.proj.bias.fill_(
        torch.nan
    )  # a NaN cuts nothing, so that it is recorded and an error names it
    assert draft.propose(state, 7, Sampler(0.0), thresholds=[threshold] * 7).confidences.isnan().sum() == 7


def test_buffers_grow_and_keep_what_they_hold() -> None:
    buffer = None
    parts = [torch.randn(2, n, 3) for n in (1, 255, 1, 600)]
    for part, length in zip(parts, (0, 1, 256, 257), strict=True):
        buffer = append(buffer, part, length)
    assert torch.equal(buffer[:, :857], torch.cat(parts, 1)) and buffer.shape[1] >= 857


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("family", registry.FAMILIES)
@pytest.mark.parametrize("algorithm", registry.ALGORITHMS)
def test_a_target_in_bf16(algorithm: str, family: str, autocast: bool) -> None:
    """Frozen tensors and states are bf16 and trained ones fp32, with and without autocast; then all are bf16."""
    how = tiny.drafter(algorithm, family=family)
    draft = registry.build(how, tiny.target_tensors(), [0, 2], 260, Start(ids=IDS)).train()
    batch, blocks = uneven_batch(draft)
    states = {"hidden": batch.hidden.bfloat16(), "last_hidden": batch.last_hidden.bfloat16()}
    batch = Batch(**{**batch.__dict__, **states})
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        total = run(draft, batch, blocks).total
    total.backward()
    assert total.dtype == torch.float32 and total.isfinite()
    assert all(
        p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in draft.trainable_parameters()
    )
    draft.eval().to(torch.bfloat16)
    with torch.no_grad():
        proposal = draft.propose(observed(draft, batch, 0, 9), 7, Sampler(1.0))
    assert proposal.probabilities.dtype == torch.float32 and torch.isin(proposal.tokens, IDS).all()


def test_a_draft_can_be_copied() -> None:
    for algorithm in registry.ALGORITHMS:
        draft = tiny.draft(algorithm)
        other = copy.deepcopy(draft)
        assert all(torch.equal(a, b) for a, b in zip(draft.parameters(), other.parameters(), strict=True))


def test_logits_are_capped_where_the_target_s_are() -> None:
    target = tiny.target_config(final_logit_softcapping=2.0)
    draft, plain = tiny.draft(target=target), tiny.draft()
    hidden = torch.randn(4, 32)
    raw = plain.logits(hidden)
    assert torch.allclose(draft.logits(hidden), 2 * torch.tanh(raw / 2), atol=1e-5) and raw.abs().max() > 2


@pytest.mark.parametrize("scaling", [{"logits_scaling": 8.0}, {"logit_scale": 0.125}])
def test_the_loss_compares_with_the_logits_that_the_target_really_gives(scaling: dict[str, float]) -> None:
    """Granite divides its logits, Cohere multiplies them; without that a draft learns a much sharper distribution."""
    draft, plain = tiny.draft(target=tiny.target_config(**scaling)), tiny.draft()
    assert (draft.config.target_logit_scale, hasattr(plain.config, "target_logit_scale")) == (0.125, False)
    plain.load_state_dict(draft.state_dict())
    batch, blocks = uneven_batch(draft)
    eighth = dataclasses.replace(batch, last_hidden=batch.last_hidden / 8)
    got, expected, other = run(draft, batch, blocks), run(plain, eighth, blocks), run(plain, batch, blocks)
    assert torch.equal(got.l1, expected.l1) and not torch.allclose(got.l1, other.l1)
