"""Golden traces, limits, EOS, and greedy output = the target's own."""

import copy
import json
import time
from pathlib import Path

import pytest
import tiny
import torch

from pipeline.config import DrafterConfig, TargetConfig
from pipeline.drafts.base import Draft, Proposal
from pipeline.drafts.checkpoint import load
from pipeline.drafts.registry import build
from pipeline.sampling import Sampler
from pipeline.target import States, Target
from pipeline.target_files import load_tensors
from stages.evaluate.decode import DecodeError, decode

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
    answer = decode(target, draft, trace["prompt"], Sampler(), room, threshold=trace["threshold"])
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
    answer = decode(target, draft, trace["prompt"], Sampler(), LIMIT, threshold=trace["threshold"])
    assert trace["prompt"] + answer.answer == trace["output"]
    assert answer.finish == "length"
    assert [token for r in answer.rounds for token in r.tokens] == answer.answer
    assert all(len(r.tokens) == r.accepted + 1 for r in answer.rounds)


class Scripted(Draft):
    """Proposes the continuation it was given, whatever it observes; remembers what it was asked and shown."""

    block_size = 4

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

    def propose(self, state, anchor, sampler, generator=None, limit=None, threshold=0.0):
        self.limits.append(limit)
        self.observed = list(state)
        chain = self.sequence[len(state) + 1 :][: min(limit, self.block_size)]
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
    with pytest.raises(DecodeError, match="expected a prompt and max_new_tokens >= 1, got 0 ids and 5"):
        decode(target, None, [], Sampler(), 5)
    with pytest.raises(DecodeError, match="got 4 ids and 0"):
        decode(target, None, PROMPT, Sampler(), 0)


def test_a_threshold_above_all_confidences_is_plain_decoding(golden):
    target, draft = golden
    prompt = TRACES[0]["prompt"]
    answer = decode(target, draft, prompt, Sampler(), 20, threshold=1.0)
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

VOCABULARY = 8
START = [3, 5]


class Remembering:
    """A target that runs the real model once for each different request; its cache is the list of ids."""

    def __init__(self, target):
        self.real, self.states = target, {}
        self.eos, self.device = (), target.device

    def new_cache(self):
        return []

    def crop(self, cache, length):
        del cache[length:]

    def run(self, input_ids, cache=None):
        request = (tuple(cache), tuple(input_ids[0].tolist()))
        cache.extend(request[1])
        if request not in self.states:
            states = self.real.run(torch.tensor([cache]))
            new = len(request[1])
            self.states[request] = States(states.hidden[:, -new:], states.last_hidden[:, -new:])
        return self.states[request]

    def logits(self, last_hidden):
        return self.real.logits(last_hidden)


class Bigrams(Draft):
    """A draft that takes microseconds: p_d(x | previous token) from a table, whatever it observes."""

    block_size = 3

    def __init__(self):
        super().__init__()
        self.table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(3))

    def loss(self, *_):
        raise NotImplementedError

    def start(self):
        return None

    def observe(self, state, tokens, hidden, last_hidden):
        pass

    def propose(self, state, anchor, sampler, generator=None, limit=None, threshold=0.0):
        tokens, rows = [anchor], []
        for _ in range(limit):
            rows.append(sampler.probabilities(self.table[tokens[-1]]))
            tokens.append(int(sampler.draw(rows[-1], generator)))
        return Proposal(torch.tensor(tokens[1:]), torch.stack(rows), None)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A target of 8 tokens whose choices are spread, and a DSpark draft of random weights for it."""
    folder = tiny.save_target(
        tmp_path_factory.mktemp("small"), scale=3.0, vocab_size=VOCABULARY, num_hidden_layers=2,
        eos_token_id=7, pad_token_id=0,
    )  # fmt: skip
    config = TargetConfig(name="small", path=str(folder), dtype="float32", device="cpu")
    torch.manual_seed(5)
    drafter = DrafterConfig(name="dspark", algorithm="dspark", block_size=3, depth=1, markov_rank=4)
    draft = build(drafter, load_tensors(config), [0, 1], mask_token_id=6).eval()
    with torch.no_grad():
        for weight in (draft.markov_head.markov_w1.weight, draft.markov_head.markov_w2.weight):
            weight.normal_(0, 0.7)
    return Target.load(config, [0, 1]), draft


def exact(target, sampler):
    """Probabilities [V, V, V] of the first three tokens after START, from one run over all 512 of them."""
    triples = torch.cartesian_prod(*[torch.arange(VOCABULARY)] * 3)
    ids = torch.cat([torch.tensor(START).expand(len(triples), -1), triples], -1)
    each = sampler.probabilities(target.logits(target.run(ids).last_hidden[:, 1:4]))  # [512, 3, V]
    return each.gather(-1, triples[..., None])[..., 0].double().prod(-1)


def draws(target, draft, sampler, count, seed):
    """How often each of the 512 triples came out of ``count`` decodes; and the drafts accepted a round."""
    random = torch.Generator().manual_seed(seed)
    counts = torch.zeros(VOCABULARY**3, dtype=torch.double)
    rounds = accepted = 0
    for _ in range(count):
        answer = decode(target, draft, START, sampler, 3, random)
        a, b, c = answer.answer
        counts[(a * VOCABULARY + b) * VOCABULARY + c] += 1
        rounds += len(answer.rounds) - 1
        accepted += sum(r.accepted for r in answer.rounds)
    return counts, accepted / rounds


def goodness(counts, expected):
    """p-value of a chi-square test; cells with an expectation below 5 are merged."""
    observed, wanted = merged(expected < 5, counts, expected)
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    return float(torch.special.gammaincc((len(wanted) - 1) / torch.tensor(2.0), statistic / 2))


def agreement(first, second):
    """p-value of a two-sample chi-square test of equally many draws; rare cells are merged."""
    a, b = merged(first + second < 10, first, second)
    statistic = ((a - b) ** 2 / (a + b)).sum()
    return float(torch.special.gammaincc((len(a) - 1) / torch.tensor(2.0), statistic / 2))


def merged(few, *cells):
    """The cells with those in ``few`` added up into one, if there are any."""
    return [torch.cat([x[~few], x[few].sum()[None]]) if few.any() else x for x in cells]


def check_lossless(target, real, draft, sampler, count):
    expected = exact(real, sampler) * count
    with_draft, accepted = draws(target, draft, sampler, count, seed=1)
    without, _ = draws(target, None, sampler, count, seed=2)
    assert 0.1 < accepted < 2  # acceptances and rejections both happen
    assert goodness(with_draft, expected) > 0.001
    assert goodness(without, expected) > 0.001
    assert agreement(with_draft, without) > 0.001


def test_lossless_at_temperature_1(small):
    """20,000 draws with a draft and without agree; the target's states are remembered between draws."""
    target, _ = small
    check_lossless(Remembering(target), target, Bigrams(), Sampler(1.0), 20_000)


def test_lossless_with_dspark(small):
    target, draft = small
    check_lossless(Remembering(target), target, draft, Sampler(1.0), 1_500)


def test_lossless_with_truncation(small):
    target, _ = small
    check_lossless(Remembering(target), target, Bigrams(), Sampler(0.8, top_k=6, top_p=0.95), 1_500)


def test_the_test_notices_a_lossy_accept(small, monkeypatch):
    """Accepting every draft is caught: the chi-square test has the power that it is trusted for."""
    target, draft = small

    def accept_all(tokens, _, logits, sampler, random):
        return len(tokens), int(sampler.draw(sampler.probabilities(logits[len(tokens)]), random))

    monkeypatch.setattr("stages.evaluate.decode.accept", accept_all)
    counts, _ = draws(Remembering(target), Bigrams(), Sampler(1.0), 2_000, seed=1)
    assert goodness(counts, exact(target, Sampler(1.0)) * 2_000) < 1e-6


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_lossless_at_temperature_1_with_the_real_cache(small):
    """The same 20,000 draws, every one through the target's own KV cache and its crops."""
    target, draft = small
    check_lossless(with_eos(target), target, draft, Sampler(1.0), 20_000)
