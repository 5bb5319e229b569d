"""Short runs of the engine that time its steps at a number of requests, for schedulers and predictions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle

from pipeline.decoding.batched import Engine
from pipeline.decoding.scheduler import Array, Policy, fixed
from pipeline.decoding.steps import Request, Step
from stages.study.points import requests

MakeEngine = Callable[[Policy | None, int, int], Engine]  # policy, slots, drafts
CHAIN_TOKENS = 4  # tokens of each request in the run with chains of one draft


class Turns:
    """Cycles through the chain lengths, one per step, so that drift in machine speed affects every length equally."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = cycle(lengths)

    def __call__(self, confidences: Array) -> Array:
        """Lengths [R] for the R requests of this step."""
        return fixed(confidences, next(self.lengths))


def lengths_of(drafts: int) -> list[int]:
    """Chain lengths to time: 0, 1, 2, half of a block and a whole block."""
    return sorted({0, 1, min(2, drafts), (drafts + 1) // 2, drafts})


def timing_requests(prompts: Sequence[tuple[int, ...]], slots: int, tokens: int) -> list[Request]:
    """Requests that keep all ``slots`` busy nearly to the end, which times fewer requests.

    Most emit ``tokens``. A quarter of the slots hold two requests of half the length, one after the other, so that
    prompts are also prefilled one by one, as under load.
    """
    more = max(1, slots // 4)
    wanted = [tokens // 2] * more + [tokens] * (slots - more) + [tokens // 2] * more
    return [Request(n, prompts[n % len(prompts)], most) for n, most in enumerate(wanted)]


def time_steps(
    make: MakeEngine, prompts: Sequence[tuple[int, ...]], slots: int, drafts: int, tokens: int
) -> list[Step]:
    """Time steps of up to ``slots`` requests with chains of 0 to ``drafts``, and some with a draft pass of one token.

    The longest requests emit ``tokens``; three tokens take about two steps.
    """
    runs = [(make(Turns(lengths_of(drafts)), slots, drafts), timing_requests(prompts, slots, tokens))]
    if drafts > 1:
        runs.append((make(None, slots, 1), requests(prompts, slots, CHAIN_TOKENS)))
    for engine, asked in runs:
        deque(engine.serve(asked), maxlen=0)
    return [step for engine, _ in runs for step in engine.steps]
