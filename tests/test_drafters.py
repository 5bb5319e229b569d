"""The same tests for every drafter. Two ranks and resuming: tests/stages/train/test_two_ranks.py, test_resume.py."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import tiny
import tiny_draws
import torch

from pipeline.config import TargetConfig
from pipeline.decoding.sampling import Sampler
from pipeline.decoding.single import decode
from pipeline.drafts import registry
from pipeline.drafts.base import Batch, Blocks, LossWeights, supervise
from pipeline.drafts.folders import checkpoint
from pipeline.drafts.model import Model
from pipeline.drafts.registry import Start
from pipeline.target.model import Target
from pipeline.target.tensors import load_tensors

TOKENS = LossWeights(1.0, 0.0, 0.0)
HEADS = LossWeights(
    1.0, 0.0, 1.0
)  # cross-entropy, as at the start of every DSpark run, and the confidence head
# Eagle3's own loss is only the soft one. But the tiny target's choices are nearly even (the likeliest token has 2 %),
# so that a draft within 1e-4 of them still misses half of its modes.
SOFT = LossWeights(0.5, 0.0, 0.0, soft=0.5)


@dataclass(frozen=True)
class Drafter:
    """One drafter. Overfitted on a sample, it has at least ``least`` tokens per round (bonus counted)."""

    algorithm: str
    loss: LossWeights
    changes: dict = field(default_factory=dict)
    reduced: bool = False
    least: float = 6.0  # of 8, which is seven drafts and the bonus token
    taps: tuple[int, ...] = (0, 2)

    def config(self, **more: object):
        """The drafter's config, with one layer."""
        return tiny.drafter(self.algorithm, **({"depth": 1} | self.changes | more))


DRAFTERS = {
    "dspark": Drafter("dspark", HEADS),
    "dspark_gated": Drafter("dspark", HEADS, {"markov_head": "gated"}),
    "dspark_rnn": Drafter("dspark", HEADS, {"markov_head": "rnn", "learned_start": True}),
    "dspark_sampled": Drafter("dspark", HEADS, {"confidence_label": "sampled"}),
    "dspark_reduced": Drafter("dspark", HEADS, reduced=True),
    "dspark_window": Drafter("dspark", HEADS, {"sliding_window": 8}),
    "dspark_gemma4": Drafter("dspark", HEADS, {"family": "gemma4"}),
    "dflash": Drafter("dflash", TOKENS),
    "dflash_fill_in": Drafter("dflash", TOKENS, {"block_size": 8, "sample_from_anchor": False}),
    "dflash_reduced": Drafter("dflash", TOKENS, reduced=True),
    "eagle3": Drafter("eagle3", SOFT),
    "eagle3_five_taps": Drafter("eagle3", SOFT, taps=(-1, 0, 1, 2, 3)),
    "eagle3_llama": Drafter("eagle3", SOFT, {"family": "llama"}),
    "eagle3_reduced": Drafter("eagle3", SOFT, reduced=True),
    "eagle3_window": Drafter("eagle3", SOFT, {"sliding_window": 8}),
    "mtp": Drafter("mtp", TOKENS, {"train_steps": 1}, least=2.5, taps=()),  # only its first draft is trained
    "mtp_1": Drafter("mtp", TOKENS, {"train_steps": 1, "block_size": 1}, least=1.8, taps=()),  # of 2
}
each_drafter = pytest.mark.parametrize("name", DRAFTERS)
PROMPTS = [[59, 60, 61, 62], [1, 2, 3, 4], [72, 101, 108, 108, 111]]
NEW = 33  # tokens of an answer: the first token, then four rounds of eight


@dataclass
class Bench:
    """A target without end tokens, which is loaded once."""

    config: TargetConfig

    def __post_init__(self) -> None:
        self.tensors = load_tensors(self.config)
        self.targets: dict[tuple[int, ...], Target] = {}
        self.trained: dict[str, Model] = {}

    def target(self, taps: tuple[int, ...]) -> Target:
        """The target with ``taps``, or with its default taps if there are none."""
        if taps not in self.targets:
            self.targets[taps] = Target.load(self.config, list(taps) or None)
            self.targets[taps].eos = ()
        return self.targets[taps]

    def greedy(self, drafter: Drafter, prompt: list[int]) -> list[int]:
        """The target's own answer."""
        return decode(self.target(drafter.taps), None, prompt, Sampler(), NEW).answer

    def new(self, drafter: Drafter) -> Model:
        """An untrained draft. A reduced vocabulary holds the tokens of the first prompt's answer and some others."""
        ids = torch.tensor(sorted({*self.greedy(drafter, PROMPTS[0]), *range(0, 272, 5)}))
        torch.manual_seed(0)
        start = Start(ids=ids if drafter.reduced else None)
        return registry.build(drafter.config(), self.tensors, list(drafter.taps), 260, start)

    def overfitted(self, name: str) -> Model:
        """The drafter ``name``, trained only on the first prompt's answer."""
        if name not in self.trained:
            self.trained[name] = self._train(DRAFTERS[name])
        return self.trained[name]

    def _train(self, drafter: Drafter, lr: float = 1e-2) -> Model:
        steps = {"dspark": 80, "dflash": 130, "eagle3": 70, "mtp": 60}[drafter.algorithm]
        draft, how = self.new(drafter).train(), registry.supervised(drafter.config())
        batch, blocks = self.sample(drafter)
        supervision = supervise(batch, blocks, how.drafts, how.decay, how.trained)
        if drafter.config().confidence_label == "sampled":
            coins = torch.rand(supervision.mask.shape, generator=torch.Generator().manual_seed(0))
            supervision = dataclasses.replace(supervision, coins=coins)
        optimizer = torch.optim.AdamW(draft.trainable_parameters(), lr=lr, weight_decay=0.0)
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = lr * min(1.0, 2 * (1 - step / steps))
            total = draft.loss(batch, blocks, supervision, drafter.loss).total
            (total / supervision.weights.sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
        return draft.eval()

    def sample(self, drafter: Drafter) -> tuple[Batch, Blocks]:
        """The first prompt with its answer, as in a cache, and a block at every position of the answer."""
        prompt = PROMPTS[0]
        ids = torch.tensor([*prompt, *self.greedy(drafter, prompt)])
        states = self.target(drafter.taps).run(ids[None])
        hidden = states.hidden if drafter.taps else states.hidden[..., :0]
        answer, count = torch.arange(len(ids)) >= len(prompt), torch.tensor([len(ids)])
        batch = Batch(
            ids[None], answer[None], count, hidden.clone(), states.last_hidden.clone(), torch.tensor([0])
        )
        anchors = torch.arange(len(prompt) - 1, len(ids) - 1)[None]
        return batch, Blocks(anchors, torch.ones_like(anchors, dtype=torch.bool))


@pytest.fixture(scope="module")
def bench(target_folder: Path) -> Bench:
    return Bench(TargetConfig(name="tiny", path=str(target_folder), dtype="float32", device="cpu"))


# --- (a) overfitting one sample --------------------------------------------------------------------------------


@each_drafter
def test_overfitting_one_sample_reaches_nearly_the_whole_length(bench: Bench, name: str) -> None:
    """Pitfall 45, with the real decoding loop."""
    drafter, prompt = DRAFTERS[name], PROMPTS[0]
    answer = decode(bench.target(drafter.taps), bench.overfitted(name), prompt, Sampler(), NEW)
    assert answer.answer == bench.greedy(drafter, prompt)
    rounds = answer.rounds[1:]
    assert (NEW - 1) / len(rounds) > drafter.least, [r.accepted for r in rounds]


# --- (b) greedy output is the target's own ---------------------------------------------------------------------


@each_drafter
def test_greedy_output_is_the_targets_own(bench: Bench, name: str) -> None:
    """Pitfalls 39 and 41, for an untrained draft and one trained for another prompt, at limits and end tokens."""
    drafter = DRAFTERS[name]
    target, drafts = bench.target(drafter.taps), [bench.new(drafter).eval(), bench.overfitted(name)]
    for prompt, limit in zip(PROMPTS[1:], (9, 14), strict=True):
        own = bench.greedy(drafter, prompt)
        for draft in drafts:
            answer = decode(target, draft, prompt, Sampler(), limit)
            assert (answer.answer, answer.finish) == (own[:limit], "length")
            assert [token for r in answer.rounds for token in r.tokens] == answer.answer
    stopping, own = copy.copy(target), bench.greedy(drafter, PROMPTS[0])
    for place in (3, 6):  # inside a block that the overfitted draft gets right
        stopping.eos = (own[place],)
        answer = decode(stopping, drafts[1], PROMPTS[0], Sampler(), NEW)
        assert answer.answer == own[: own.index(own[place]) + 1] and answer.finish == "stop"
        assert sum(len(r.tokens) for r in answer.rounds) == len(answer.answer)


# --- (c) sampled output is distributed as the target's ---------------------------------------------------------

QUICK = ("dspark_reduced", "eagle3_reduced", "mtp", "dflash_fill_in")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> TargetConfig:
    return tiny_draws.small_config(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize(
    "name,count",
    [
        *((name, 3_000) for name in QUICK),
        *(
            pytest.param(name, 20_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])
            for name in DRAFTERS
        ),
    ],
)
def test_sampled_output_is_distributed_as_the_targets(small: TargetConfig, name: str, count: int) -> None:
    """Tokens that a reduced vocabulary cannot draft also come out as often as they should."""
    drafter = dataclasses.replace(DRAFTERS[name], taps=(0, 1))
    block = 4 if name == "dflash_fill_in" else min(3, drafter.config().block_size)
    config = drafter.config(block_size=block, markov_rank=4 if drafter.algorithm == "dspark" else 0)
    draft = tiny_draws.remembering(tiny_draws.small_draft(small, config, drafter.reduced))
    target = Target.load(small, [0, 1])
    remembered = tiny_draws.Remembering(target)
    tiny_draws.check_lossless(remembered, target, draft, Sampler(1.0), count, plain=1_000)


# --- (d) context causality -------------------------------------------------------------------------------------


def random_draft(drafter: Drafter) -> Model:
    """Random weights that are large enough for every part to matter."""
    return tiny.draft(
        drafter.algorithm, ids=torch.arange(0, 272, 3) if drafter.reduced else None,
        **({"depth": 2 if drafter.algorithm in ("dspark", "dflash") else 1} | drafter.changes),
    )  # fmt: skip


@torch.no_grad()
def logits(draft: Model, batch: Batch, blocks: Blocks) -> torch.Tensor:
    """Logits [B, A, G, D], including the part of the sequential head."""
    states = draft.block_states(batch, blocks)
    _, features = draft.head_inputs(batch, blocks, states)
    return draft.logits(states) + (0 if features is None else draft.markov_head.bias(features))


@each_drafter
@pytest.mark.parametrize("attention", ["dense", "grouped"])
def test_states_at_and_after_the_anchor_do_not_reach_the_block(name: str, attention: str) -> None:
    """Pitfall 24, bit for bit. The state before the anchor is the last one that a block sees."""
    draft = random_draft(DRAFTERS[name])
    draft.attention = attention
    batch, blocks = tiny.batch([30]), Blocks(torch.tensor([[4, 11, 20]]), torch.ones(1, 3, dtype=torch.bool))
    before = logits(draft, batch, blocks)
    changed = []
    for first in (11, 10):
        other = {k: getattr(batch, k).clone() for k in ("hidden", "last_hidden")}
        for states in other.values():
            states[0, first:] += 5.0
        changed.append(logits(draft, dataclasses.replace(batch, **other), blocks))
    assert torch.equal(before[0, :2], changed[0][0, :2])
    assert not torch.allclose(before[0, 2], changed[0][0, 2]), "the block at 20 does see positions 11 .. 19"
    assert torch.equal(before[0, 0], changed[1][0, 0])
    assert not torch.allclose(before[0, 1], changed[1][0, 1]), "position 10 is the anchor's last context"


# --- (e) uneven batches ------------------------------------------------------------------------------------------


def figures(
    draft: Model, batch: Batch, blocks: Blocks, drafter: Drafter
) -> tuple[list[float], list[torch.Tensor]]:
    how = registry.supervised(drafter.config())
    draft.zero_grad()
    terms = draft.loss(
        batch, blocks, supervise(batch, blocks, how.drafts, how.decay, how.trained), drafter.loss, 16
    )
    terms.total.backward()
    gradients = [p.grad.clone() for p in draft.trainable_parameters()]
    return [x.item() for x in (terms.total, terms.ce, terms.l1, terms.confidence)], gradients


def only(batch: Batch, blocks: Blocks, row: int) -> tuple[Batch, Blocks]:
    """One sequence of a batch, without its padding."""
    n = int(batch.lengths[row])
    part = {k: getattr(batch, k)[row : row + 1] for k in batch.__dataclass_fields__}
    part |= {k: part[k][:, :n] for k in ("input_ids", "loss_mask", "hidden", "last_hidden")}
    kept = int(blocks.keep[row].sum())
    return Batch(**part), Blocks(blocks.anchors[row : row + 1, :kept], blocks.keep[row : row + 1, :kept])


@each_drafter
@pytest.mark.parametrize("attention", ["dense", "grouped"])
def test_a_batch_is_its_sequences(name: str, attention: str) -> None:
    """Pitfall 27: loss terms and gradients of an uneven batch are the sums of those of its sequences."""
    drafter = DRAFTERS[name]
    draft = random_draft(drafter).train()
    draft.attention = attention
    batch = tiny.batch([30, 9, 19])
    keep = [[True, True, True], [True, False, False], [True, True, False]]
    blocks = Blocks(torch.tensor([[4, 11, 20], [5, 5, 5], [6, 9, 9]]), torch.tensor(keep))
    whole, gradient = figures(draft, batch, blocks, drafter)
    parts = [figures(draft, *only(batch, blocks, row), drafter) for row in range(3)]
    assert whole == pytest.approx([sum(p[0][i] for p in parts) for i in range(4)], rel=1e-4, abs=1e-4)
    for i, expected in enumerate(gradient):
        assert expected.isfinite().all()
        assert torch.allclose(
            expected, sum(p[1][i] for p in parts), atol=1e-3 * (1 + float(expected.abs().max()))
        )


# --- (f) save and load -------------------------------------------------------------------------------------------


@each_drafter
def test_what_was_trained_is_what_is_loaded(bench: Bench, name: str, tmp_path: Path) -> None:
    """The logits are the same to the bit, and so is the answer, even if the target's tensors are not in the folder."""
    drafter, draft = DRAFTERS[name], bench.overfitted(name)
    checkpoint.save(draft, tmp_path)
    batch, blocks = bench.sample(drafter)
    for loaded in (checkpoint.load(tmp_path), checkpoint.load(tmp_path, bench.tensors)):
        assert torch.equal(logits(draft, batch, blocks), logits(loaded, batch, blocks))
    target = bench.target(drafter.taps)
    rounds = [decode(target, d, PROMPTS[0], Sampler(), 12).rounds for d in (draft, loaded)]
    facts = [[(r.tokens, r.accepted, r.drafted, r.confidences) for r in answer] for answer in rounds]
    assert facts[0] == facts[1]
