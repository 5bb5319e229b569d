"""Golden traces, limits, EOS, and greedy output = the target's own."""

import copy
import json
import time
from pathlib import Path

import pytest
import tiny
import tiny_draws
import torch
from tiny_draws import Remembering, check_lossless
from tiny_errors import refused

from pipeline.config import TargetConfig
from pipeline.decoding.sampling import Sampler
from pipeline.decoding.single import DecodeError, decode
from pipeline.drafts.base import Draft, Proposal
from pipeline.drafts.folders.checkpoint import load
from pipeline.target.model import Target

GOLDEN = Path(__file__).parents[2] / "golden" / "qwen3_dspark_decode"
TRACES = json.loads((GOLDEN / "expected.json").read_text())
LIMIT = 60  # new tokens of every golden trace
BLOCK = 7


@pytest.fixture(scope="module")
def golden():
    draft = load(GOLDEN / "draft")
    config = TargetConfig(name="golden", path=str(GOLDEN / "target"), dtype="float32", device="cpu")
    return Target.load(config, taps=draft.config.target_layer_ids), draft


@pytest.mark.parametrize("number", range(len(TRACES)))
def test_golden_trace(golden, number):
    """All figures of all rounds.

    The reference starts rounds until the target has *run* over token 60, so its last round may emit tokens
    that it then cuts. With room for another block nothing is cut here either, and the rounds are the same.
    """
    target, draft = golden
    trace = TRACES[number]
    room = LIMIT + BLOCK + 1
    answer = decode(target, draft, trace["prompt"], Sampler(), room, thresholds=[trace["threshold"]] * 7)
    ran = [r for r in answer.rounds[1:] if r.context < len(trace["prompt"]) + LIMIT]
    assert [r.accepted + 1 for r in ran] == trace["acceptance_lengths"]
    assert [r.proposed for r in ran] == trace["proposal_lengths"]
    assert [r.accepted for r in ran] == trace["accepted_draft_lengths"]
    assert trace["prompt"] + answer.answer[:LIMIT] == trace["output"]
    assert trace["output"] == TRACES[number % 10]["target_greedy"]  # the second ten are the same prompts


@pytest.mark.parametrize("number", range(len(TRACES)))
def test_golden_answers_at_their_own_limit(golden, number):
    """Exactly 60 tokens; the emitted tokens of the rounds are the answer (pitfall 39)."""
    target, draft = golden
    trace = TRACES[number]
    answer = decode(target, draft, trace["prompt"], Sampler(), LIMIT, thresholds=[trace["threshold"]] * 7)
    assert trace["prompt"] + answer.answer == trace["output"]
    assert answer.finish == "length"
    assert [token for r in answer.rounds for token in r.tokens] == answer.answer
    assert all(len(r.tokens) == r.accepted + 1 for r in answer.rounds)


class Scripted(Draft):
    """Proposes the continuation it was given, whatever it observes; remembers what it was asked and shown."""

    max_drafts = 4

    def __init__(self, prompt, continuation):
        super().__init__()
        self.sequence = [*prompt, *continuation]
        self.limits = []

    def loss(self, *_):
        raise NotImplementedError

    def start(self):
        return []

    def observe(self, state, tokens, hidden, last_hidden):
        assert len(tokens) == len(hidden) == len(last_hidden)
        state.extend(tokens.tolist())

    def propose(self, state, anchor, sampler, generator=None, limit=None, thresholds=()):
        self.limits.append(limit)
        self.observed = list(state)
        chain = self.sequence[len(state) + 1 :][: min(limit, self.max_drafts)]
        return Proposal(torch.tensor(chain, dtype=torch.long), None, None)


PROMPT = [59, 60, 61, 62]  # the tiny target goes on with eleven different tokens


@pytest.fixture(scope="module")
def target(target_folder):
    config = TargetConfig(name="tiny", path=str(target_folder), dtype="float32", device="cpu")
    return Target.load(config, taps=[1])


@pytest.fixture(scope="module")
def greedy(target):
    """The target's own greedy continuation of PROMPT, by transformers, beyond any end token."""
    out = target.model.generate(torch.tensor([PROMPT]), max_new_tokens=30, do_sample=False, eos_token_id=None)
    return out[0, len(PROMPT) :].tolist()


def with_eos(target, *eos):
    """The same target with other end tokens."""
    other = copy.copy(target)
    other.eos = eos
    return other


def test_plain_greedy_is_the_targets_own(target, greedy):
    """Pitfall 41."""
    answer = decode(with_eos(target), None, PROMPT, Sampler(), 30)
    assert answer.answer == greedy
    assert answer.finish == "length"
    assert [(r.drafted, r.proposed, r.accepted) for r in answer.rounds] == [(0, 0, 0)] * 30


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 11])
def test_a_perfect_draft_fills_the_limit_exactly(target, greedy, length):
    """Accepted lengths add up to the emitted tokens at every limit (pitfalls 38, 39)."""
    draft = Scripted(PROMPT, greedy)
    answer = decode(with_eos(target), draft, PROMPT, Sampler(), length)
    assert answer.answer == greedy[:length]
    # Round 0 emits one token; then blocks of 4 drafts and a bonus, the last one cut to what is left.
    left, expected = length - 1, [1]
    while left:
        expected.append(min(5, left))
        left -= expected[-1]
    assert [len(r.tokens) for r in answer.rounds] == expected
    assert [r.accepted for r in answer.rounds[1:]] == [n - 1 for n in expected[1:]]
    assert [r.proposed for r in answer.rounds] == [r.accepted for r in answer.rounds]
    assert [r.context for r in answer.rounds] == [
        4,
        *(4 + sum(expected[:i]) - 1 for i in range(1, len(expected))),
    ]


def test_the_draft_observes_exactly_the_verified_tokens(target, greedy):
    """What it has seen is the prompt and the answer before the anchor, also after rejections."""
    wrong = list(greedy)
    wrong[3] = (greedy[3] + 1) % 200
    wrong[9] = (greedy[9] + 1) % 200
    draft = Scripted(PROMPT, wrong)
    answer = decode(with_eos(target), draft, PROMPT, Sampler(), 20)
    assert answer.answer == greedy[:20]
    assert draft.observed == [*PROMPT, *greedy[: len(draft.observed) - len(PROMPT)]]
    assert [r.accepted for r in answer.rounds[1:]] == [2, 4, 0, 4, 4]
    assert [r.proposed for r in answer.rounds[1:]] == [4, 4, 4, 4, 4]


@pytest.mark.parametrize("place", range(1, 9))
def test_drafts_after_an_accepted_eos_do_not_count(target, greedy, place):
    """EOS as prefill token, inside a block, as its last draft, as bonus: emitted = answer (pitfall 39)."""
    end = greedy[place - 1]
    assert end not in greedy[: place - 1]
    answer = decode(with_eos(target, 271, end), Scripted(PROMPT, greedy), PROMPT, Sampler(), 30)
    assert answer.answer == greedy[:place]
    assert answer.finish == "stop"
    assert sum(len(r.tokens) for r in answer.rounds) == place
    last = answer.rounds[-1]
    if len(answer.rounds) > 1:
        bonus_is_end = (place - 1) % 5 == 0
        assert len(last.tokens) == last.accepted + bonus_is_end
        assert last.proposed == last.accepted
        assert last.drafted == 4


def test_bad_requests(target):
    with refused(DecodeError, "max_new_tokens", 0, 5):
        decode(target, None, [], Sampler(), 5)
    with refused(DecodeError, "max_new_tokens", 4, 0):
        decode(target, None, PROMPT, Sampler(), 0)


def test_a_threshold_above_all_confidences_is_plain_decoding(golden):
    target, draft = golden
    prompt = TRACES[0]["prompt"]
    answer = decode(target, draft, prompt, Sampler(), 20, thresholds=[1.0])
    assert answer.answer == decode(target, None, prompt, Sampler(), 20).answer
    assert all(r.drafted == 0 for r in answer.rounds)


def test_times_cover_the_whole_decode(golden):
    target, draft = golden
    started = time.perf_counter()
    answer = decode(target, draft, TRACES[0]["prompt"], Sampler(), 20)
    passed = time.perf_counter() - started
    assert 0.9 * passed < sum(r.draft_seconds + r.verify_seconds for r in answer.rounds) <= passed


def test_bf16_answers_differ_only_at_near_ties(golden):
    """Pitfall 41: where a bf16 answer leaves the plain one, the target's best two logits are close."""
    _, draft = golden
    config = TargetConfig(name="golden", path=str(GOLDEN / "target"), dtype="bfloat16", device="cpu")
    target = Target.load(config, taps=draft.config.target_layer_ids)
    draft = load(GOLDEN / "draft").to(torch.bfloat16)
    for trace in TRACES[:5]:
        drafted = decode(target, draft, trace["prompt"], Sampler(), 40).answer
        plain = decode(target, None, trace["prompt"], Sampler(), 40).answer
        fork = next((i for i, (a, b) in enumerate(zip(drafted, plain, strict=True)) if a != b), None)
        if fork is not None:
            ids = torch.tensor([[*trace["prompt"], *plain[:fork]]])
            best = target.logits(target.run(ids).last_hidden[0, -1]).float().topk(2).values
            assert float(best[0] - best[1]) < 0.02 * float(best[0].abs())


# --- losslessness at temperature 1 ------------------------------------------------------------------------


class Bigrams(Draft):
    """A draft that takes microseconds: p_d(x | previous token) from a table, whatever it observes."""

    max_drafts = 3

    def __init__(self):
        super().__init__()
        self.table = torch.randn(8, 8, generator=torch.Generator().manual_seed(3))

    def loss(self, *_):
        raise NotImplementedError

    def start(self):
        return None

    def observe(self, state, tokens, hidden, last_hidden):
        pass

    def propose(self, state, anchor, sampler, generator=None, limit=None, thresholds=()):
        tokens, rows = [anchor], []
        for _ in range(limit):
            rows.append(sampler.probabilities(self.table[tokens[-1]]))
            tokens.append(int(sampler.draw(rows[-1], generator)))
        return Proposal(torch.tensor(tokens[1:]), torch.stack(rows), None)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A target of 8 tokens whose choices are spread, and a DSpark draft of random weights for it."""
    config = tiny_draws.small_config(tmp_path_factory.mktemp("small"))
    draft = tiny_draws.small_draft(config, tiny.drafter(block_size=3, depth=1, markov_rank=4))
    return Target.load(config, [0, 1]), draft


def test_lossless_at_temperature_1(small):
    """20,000 draws with a draft are the target's; its states are remembered between draws."""
    target, _ = small
    check_lossless(Remembering(target), target, Bigrams(), Sampler(1.0), 20_000, plain=2_000)


def test_lossless_with_dspark(small):
    target, draft = small
    check_lossless(Remembering(target), target, draft, Sampler(1.0), 1_500, plain=500)


def test_lossless_with_truncation(small):
    target, _ = small
    check_lossless(
        Remembering(target), target, Bigrams(), Sampler(0.8, top_k=6, top_p=0.95), 1_500, plain=500
    )


def test_the_test_notices_a_lossy_accept(small, monkeypatch):
    """Accepting every draft is caught: the chi-square test has the power that it is trusted for."""
    target, draft = small

    def accept_all(tokens, _, logits, sampler, random):
        return len(tokens), int(sampler.draw(sampler.probabilities(logits[len(tokens)]), random))

    monkeypatch.setattr("pipeline.decoding.single.accept", accept_all)
    counts, _ = tiny_draws.draws(Remembering(target), Bigrams(), Sampler(1.0), 2_000, seed=1)
    assert tiny_draws.goodness(counts, tiny_draws.exact(target, Sampler(1.0)) * 2_000) < 1e-6


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_lossless_at_temperature_1_with_the_real_cache(small):
    """The same 20,000 draws, every one through the target's own KV cache and its crops."""
    target, draft = small
    check_lossless(with_eos(target), target, draft, Sampler(1.0), 20_000, plain=20_000)
