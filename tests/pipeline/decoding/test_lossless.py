"""Answers are distributed as the target's own, whatever the draft proposes: every outcome is enumerated."""

import pytest
import torch
from tiny_outcomes import TableDraft, TableRagged, TableTarget, exact, logits_after, outcomes

from pipeline.decoding import batched
from pipeline.decoding.batched import Engine
from pipeline.decoding.sampling import Sampler, accept
from pipeline.decoding.single import decode
from pipeline.decoding.steps import Request

PROMPT = (1, 0)
SAMPLERS = {
    "target": Sampler(1.0),
    "greedy": Sampler(1.0, draft_sampling="greedy"),
    "target, truncated": Sampler(0.7, top_k=2),
    "greedy, truncated": Sampler(0.7, top_k=2, draft_sampling="greedy"),
    "mode": Sampler(draft_sampling="greedy"),
}


def one_prompt(sampler):
    """Answers of four tokens: the first without a draft, then a chain of at most two."""
    return tuple(decode(TableTarget(), TableDraft(), PROMPT, sampler, 4).answer)


@pytest.mark.parametrize("name", SAMPLERS)
def test_one_prompt_is_answered_as_by_the_target(name):
    sampler = SAMPLERS[name]
    assert outcomes(lambda: one_prompt(sampler)) == pytest.approx(exact(PROMPT, 4, sampler), abs=1e-6)


@pytest.mark.parametrize("name", SAMPLERS)
def test_prompts_together_are_answered_as_by_the_target(name, monkeypatch):
    """Two requests at a time: the answers are independent of each other."""
    monkeypatch.setattr(batched, "RaggedTarget", TableRagged)
    sampler = SAMPLERS[name]
    requests = [Request(0, PROMPT, 3), Request(1, (2,), 2)]

    def together():
        served = Engine(TableTarget(), TableDraft(), sampler, None, 2, 8).serve(requests)
        answers = {one.request.number: tuple(one.answer) for one in served}
        return answers[0], answers[1]

    first, second = exact(PROMPT, 3, sampler), exact((2,), 2, sampler)
    both = {(a, b): p * q for a, p in first.items() for b, q in second.items()}
    assert outcomes(together) == pytest.approx(both, abs=1e-6)


def test_a_wrong_rule_is_found_out(monkeypatch):
    """Drafts that are the draft's mode, judged as if they had been drawn: not the target's distribution."""
    monkeypatch.setattr(Sampler, "of_draft", property(lambda self: self))
    real = TableDraft.propose_all

    def mode(self, states, anchors, sampler, *rest):
        made = real(self, states, anchors, sampler, *rest)
        likely = real(self, states, anchors, Sampler(), *rest)
        return type(made)(likely.tokens, made.probabilities[:, : likely.tokens.shape[1]], None)

    monkeypatch.setattr(TableDraft, "propose_all", mode)
    sampler = Sampler(1.0)
    found, own = outcomes(lambda: one_prompt(sampler)), exact(PROMPT, 4, sampler)
    assert max(abs(found.get(answer, 0) - p) for answer, p in own.items()) > 0.02


def test_a_mode_is_accepted_with_the_targets_probability_of_it():
    """p_t(x) = 0.5 of x = 0; a rejection draws from the others, 0.3 and 0.2, over 0.5."""
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.0, 0.0, 1.0]]))
    sampler = Sampler(1.0, draft_sampling="greedy")
    found = outcomes(lambda: accept(torch.tensor([0]), None, logits, sampler))
    assert found == pytest.approx({(1, 2): 0.5, (0, 1): 0.3, (0, 2): 0.2})


def test_what_the_draft_proposes():
    """A mode with certainty, whatever the target's temperature; or a draw, with what it was drawn from."""
    draft, state = TableDraft(), [1]
    made = draft.propose(state, 0, SAMPLERS["greedy"].of_draft)
    first = int(logits_after((1, 0), 2).argmax())
    assert made.tokens.tolist() == [first, int(logits_after((1, 0, first), 2).argmax())]
    assert made.probabilities is None
    drawn = draft.propose(state, 0, SAMPLERS["target"].of_draft)
    assert torch.allclose(drawn.probabilities[0], logits_after((1, 0), 2).softmax(-1))
    assert SAMPLERS["mode"].of_draft == Sampler()
