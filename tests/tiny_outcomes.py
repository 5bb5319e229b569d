"""Every outcome of a decode with its exact probability, and a target and a draft of three tokens that are tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.decoding.sampling import Sampler
from pipeline.drafts.model import Model
from pipeline.target.model import States

VOCABULARY = 3


@dataclass
class Choices:
    """The random choices of one run: the first ones as they are given, the others the first that is possible."""

    taken: list[int] = field(default_factory=list)
    weights: list[list[float]] = field(default_factory=list)

    def choose(self, weights: list[float]) -> int:
        """One of the numbers with a positive weight."""
        place = len(self.weights)
        self.weights.append(weights)
        if place == len(self.taken):
            self.taken.append(next(i for i, weight in enumerate(weights) if weight > 0))
        return self.taken[place]

    def advance(self) -> bool:
        """Change the latest choice that can be another; False when all were made."""
        while self.taken:
            weights, last = self.weights.pop(), self.taken.pop()
            following = [i for i, weight in enumerate(weights) if weight > 0 and i > last]
            if following:
                self.taken.append(following[0])
                self.weights = []
                return True
        return False

    @property
    def probability(self) -> float:
        """Of the choices that were made."""
        pairs = zip(self.weights, self.taken, strict=True)
        return math.prod(weights[i] / sum(weights) for weights, i in pairs)


class Coins:
    """Numbers drawn evenly from [0, 1): ``self * p < q`` holds with the probability min(1, q / p)."""

    def __init__(self, choices: Choices, scale: Tensor | float = 1.0) -> None:
        self.choices, self.scale = choices, scale

    def __mul__(self, scale: Tensor) -> Coins:
        return Coins(self.choices, scale)

    def __lt__(self, least: Tensor) -> Tensor:
        shares = (least / self.scale).clamp(max=1).tolist()
        return torch.tensor([bool(self.choices.choose([1 - share, share])) for share in shares])


@contextmanager
def _deciding(choices: Choices) -> Iterator[None]:
    """Draws and coins of the sampler are ``choices``."""

    def draw(sampler: Sampler, probabilities: Tensor, generator: Any = None) -> Tensor:
        if sampler.greedy:
            return probabilities.argmax(-1)
        return torch.tensor([choices.choose(row) for row in probabilities.double().tolist()])

    real = Sampler.draw, torch.rand
    Sampler.draw, torch.rand = draw, lambda *_, **__: Coins(choices)  # type: ignore[assignment]
    try:
        yield
    finally:
        Sampler.draw, torch.rand = real  # type: ignore[method-assign]


def outcomes(run: Callable[[], Hashable]) -> dict[Hashable, float]:
    """What ``run`` can return -> its probability, over every draw and every coin that ``run`` makes."""
    found: Counter[Hashable] = Counter()
    choices, more = Choices(), True
    while more:
        choices.weights = []
        with _deciding(choices):
            found[run()] += choices.probability  # type: ignore[assignment]
        more = choices.advance()
    return dict(found)


def logits_after(ids: tuple[int, ...], seed: int) -> Tensor:
    """Logits [V] of what follows ``ids``, by a table."""
    generator = torch.Generator().manual_seed(seed + sum((i + 1) * 5**n for n, i in enumerate(ids)))
    return torch.randn(VOCABULARY, generator=generator)


class TableTarget:
    """A target whose logits are those of a table; its final states are the logits themselves."""

    eos, device = (), torch.device("cpu")

    def new_cache(self) -> list[int]:
        return []

    def crop(self, cache: list[int], length: int) -> None:
        del cache[length:]

    def run(self, input_ids: Tensor, cache: list[int]) -> States:
        rows = []
        for token in input_ids[0].tolist():
            cache.append(token)
            rows.append(logits_after(tuple(cache), seed=1))
        return States(torch.zeros(1, len(rows), 1), torch.stack(rows)[None])

    def logits(self, last_hidden: Tensor) -> Tensor:
        return last_hidden


class TableRagged:
    """``RaggedTarget`` for such a target."""

    def __init__(self, target: TableTarget, slots: int, capacity: int) -> None:
        self.target, self.caches, self.capacity = target, [[] for _ in range(slots)], capacity

    @property
    def lengths(self) -> list[int]:
        return [len(cache) for cache in self.caches]

    @lengths.setter
    def lengths(self, values: list[int]) -> None:
        for slot, length in enumerate(values):
            self.keep(slot, length)

    @contextmanager
    def attention(self) -> Iterator[None]:
        yield

    def keep(self, slot: int, length: int) -> None:
        del self.caches[slot][length:]

    def run(self, slots: list[int], counts: list[int], ids: Tensor) -> States:
        parts = zip(slots, ids.split(list(counts)), strict=True)
        made = [self.target.run(part[None], self.caches[slot]) for slot, part in parts]
        return States(torch.cat([s.hidden[0] for s in made]), torch.cat([s.last_hidden[0] for s in made]))


class TableDraft(Model):
    """A draft of at most two tokens, by another table; its state is the list of ids that it has seen."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.config = SimpleNamespace(block_size=2, vocab_size=VOCABULARY)
        self.lm_head = nn.Linear(1, VOCABULARY)
        self.d2t = None

    def start(self) -> list[int]:
        return []

    def observe_all(
        self, states: Any, counts: Any, tokens: Tensor, hidden: Tensor, last_hidden: Tensor
    ) -> None:
        for state, part in zip(states, tokens.split(list(counts)), strict=True):
            state.extend(part.tolist())

    def begin(self, states: Any, anchors: Tensor) -> Any:
        chains = [list(state) for state in states]

        def step(previous: Tensor) -> tuple[Tensor, None]:
            for chain, token in zip(chains, previous.tolist(), strict=True):
                chain.append(token)
            return torch.stack([logits_after(tuple(chain), seed=2) for chain in chains]), None

        return step

    def block_states(self, *_: Any) -> Any:
        raise NotImplementedError  # it is not trained


def exact(prompt: tuple[int, ...], tokens: int, sampler: Sampler) -> dict[tuple[int, ...], float]:
    """Every answer of ``tokens`` tokens that the target can give to ``prompt`` -> its probability."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(tokens):
        found = {
            (*answer, token): share * p
            for answer, share in found.items()
            for token, p in enumerate(sampler.probabilities(logits_after((*prompt, *answer), 1)).tolist())
            if p > 0
        }
    return found
