"""Chi-square tests of whether sampled decoding is lossless, on a target of eight tokens that is known completely."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiny
import torch
from torch import Tensor

from pipeline.config import DrafterConfig, TargetConfig
from pipeline.decoding.sampling import Sampler
from pipeline.decoding.single import _Loop
from pipeline.drafts.model import Model
from pipeline.drafts.registry import Start, build
from pipeline.target.model import States, Target
from pipeline.target.tensors import load_tensors

VOCABULARY = 8
START = [3, 5]
IDS = torch.tensor([0, 2, 3, 5, 7])  # a reduced vocabulary, without three tokens


def small_config(folder: Path) -> TargetConfig:
    """The config of a target with 8 tokens and varied choices, written to ``folder``."""
    tiny.save_target(
        folder, scale=3.0, vocab_size=VOCABULARY, num_hidden_layers=2, eos_token_id=7, pad_token_id=0
    )
    return TargetConfig(name="small", path=str(folder), dtype="float32", device="cpu")


def small_draft(config: TargetConfig, drafter: DrafterConfig, reduced: bool = False) -> Model:
    """An untrained draft for that target, whose heads (if it has any) have an effect."""
    torch.manual_seed(5)
    made = build(drafter, load_tensors(config), [0, 1], 6, Start(ids=IDS if reduced else None)).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if name.startswith("markov_head") and weight.dim() > 1:
                weight.normal_(0, 0.7)
    return made


class Remembering:
    """A target that runs the real model once for each different request. Its cache is the list of ids."""

    def __init__(self, target: Target) -> None:
        self.real = target
        self.states: dict[Any, States] = {}
        self.known: dict[Any, Tensor] = {}
        self.eos, self.device = (), target.device

    def new_cache(self) -> list[int]:
        return []

    def crop(self, cache: list[int], length: int) -> None:
        del cache[length:]

    def run(self, input_ids: Tensor, cache: list[int]) -> States:
        request = (tuple(cache), tuple(input_ids[0].tolist()))
        cache.extend(request[1])
        if request not in self.states:
            states = self.real.run(torch.tensor([cache]))
            new = len(request[1])
            self.states[request] = States(states.hidden[:, -new:], states.last_hidden[:, -new:])
        return self.states[request]

    def logits(self, last_hidden: Tensor) -> Tensor:
        place = last_hidden.data_ptr(), len(last_hidden)  # of a remembered state
        if place not in self.known:
            self.known[place] = self.real.logits(last_hidden)
        return self.known[place]


def remembering(draft: Model) -> Model:
    """``draft``, changed to make one pass for each different context and chain. Its state is what it has observed."""
    start, observe, begin = draft.start, draft.observe, draft.begin
    known: dict[Any, Any] = {}

    def begin_once(states: list[list[Any]], anchor: Tensor) -> Any:
        [state] = states
        seen, chain = tuple(t for tokens, *_ in state for t in tokens.tolist()), []

        def step(previous: Tensor) -> Any:
            chain.append(previous)
            place = seen, tuple(map(int, chain))
            if place not in known:
                real = start()
                for piece in state:
                    observe(real, *piece)
                walk = begin([real], anchor)
                *_, known[place] = (walk(token) for token in chain)
            return known[place]

        return step

    draft.start, draft.begin = list, begin_once  # type: ignore[method-assign, assignment]
    draft.observe = lambda state, *piece: state.append(piece)  # type: ignore[method-assign, assignment]
    return draft


def exact(target: Target, sampler: Sampler) -> Tensor:
    """Probabilities [V * V * V] of the first three tokens after START, from one run over all 512 triples."""
    triples = torch.cartesian_prod(*[torch.arange(VOCABULARY)] * 3)
    ids = torch.cat([torch.tensor(START).expand(len(triples), -1), triples], -1)
    each = sampler.probabilities(target.logits(target.run(ids).last_hidden[:, 1:4]))  # [512, 3, V]
    return each.gather(-1, triples[..., None])[..., 0].double().prod(-1)


@torch.inference_mode()
def draws(target: Any, draft: Any, sampler: Sampler, count: int, seed: int) -> tuple[Tensor, float]:
    """How often each of the 512 triples came out of ``count`` decodes, and the accepted drafts of each round.

    Every decode begins where all tokens of START but the last have been observed.
    """
    random = torch.Generator().manual_seed(seed)
    counts = [0] * VOCABULARY**3
    rounds = accepted = 0
    for _ in range(count):
        loop, tokens = started(target, draft, sampler, random), []
        while len(tokens) < 3:
            made = loop.round(limit=3 - len(tokens) - 1)
            tokens += made.tokens
            rounds, accepted = rounds + 1, accepted + made.accepted
        a, b, c = tokens
        counts[(a * VOCABULARY + b) * VOCABULARY + c] += 1
    return torch.tensor(counts, dtype=torch.double), accepted / rounds


def started(target: Any, draft: Any, sampler: Sampler, random: torch.Generator) -> _Loop:
    """The decoding loop after the prefill, which would be the same in every draw. The next token follows START[-1]."""
    loop = _Loop(target, draft, sampler, random, ())
    prompt = torch.tensor(START[:-1])
    states = target.run(prompt[None], cache=loop.cache)
    loop._observe(prompt, states.hidden[0], states.last_hidden[0])
    loop.anchor = START[-1]
    return loop


def goodness(counts: Tensor, expected: Tensor) -> float:
    """The p-value of a chi-square test. Cells with an expected count below 5 are merged."""
    possible = expected > 0
    assert not counts[~possible].any(), "a token that was truncated away"
    observed, wanted = (x[possible] for x in (counts, expected))
    observed, wanted = merged(wanted < 5, observed, wanted)
    assert len(wanted) > 20, "too few draws to tell"
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    return float(torch.special.gammaincc((len(wanted) - 1) / torch.tensor(2.0), statistic / 2))


def agreement(first: Tensor, second: Tensor) -> float:
    """The p-value of a two-sample chi-square test. Rare cells are merged and empty ones left out."""
    some = first + second > 0
    a, b = merged(((first < 5) | (second < 5))[some], first[some], second[some])
    share = float((b.sum() / a.sum()).sqrt())
    statistic = ((a * share - b / share) ** 2 / (a + b)).sum()
    return float(torch.special.gammaincc((len(a) - 1) / torch.tensor(2.0), statistic / 2))


def merged(few: Tensor, *cells: Tensor) -> list[Tensor]:
    """The cells, with those in ``few`` merged into one."""
    return [torch.cat([x[~few], x[few].sum()[None]]) if few.any() else x for x in cells]


def pairs(triples: Tensor) -> Tensor:
    """Counts of the first two tokens, which need fewer draws because they have only 64 cells."""
    return triples.view(VOCABULARY**2, VOCABULARY).sum(1)


def check_lossless(target: Any, real: Target, draft: Any, sampler: Sampler, count: int, plain: int) -> None:
    """Compare ``count`` draws with the draft, ``plain`` draws without it, and the exact probabilities."""
    expected = exact(real, sampler)
    with_draft, accepted = draws(target, draft, sampler, count, seed=1)
    without, _ = draws(target, None, sampler, plain, seed=2)
    assert 0.1 < accepted < 1.9  # acceptances and rejections both happen
    assert goodness(with_draft, expected * count) > 0.001
    assert goodness(pairs(without), pairs(expected * plain)) > 0.001
    assert agreement(pairs(with_draft), pairs(without)) > 0.001
