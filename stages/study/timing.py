"""A short run of the engine that says what its steps cost at a number of requests: the costs that predictions use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

import numpy as np

from pipeline.decoding.batched import Engine
from pipeline.decoding.scheduler import Array, Policy, fixed
from pipeline.decoding.steps import Request, Step

MakeEngine = Callable[[Policy | None, int, int], Engine]  # policy, slots, drafts
CHAIN_TOKENS = 4  # a request of the run with chains of one draft


class Turns:
    """Another length every step, the same for all requests: the machine's drift meets all of them alike."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = cycle(lengths)

    def __call__(self, confidences: Array) -> Array:
        """Lengths [R] of this step."""
        return fixed(confidences, next(self.lengths))


def lengths_of(drafts: int) -> list[int]:
    """Chain lengths to be timed: none, one, two, half of a block and all of it."""
    return sorted({0, 1, min(2, drafts), (drafts + 1) // 2, drafts})


def timing_requests(prompts: Sequence[tuple[int, ...]], slots: int, tokens: int) -> list[Request]:
    """Requests that keep all ``slots`` busy nearly to the end: each emits ``tokens``, but a quarter only half of them,
    whose places others take (prompts that are read one by one, as under load). The end times fewer requests.
    """
    more = max(1, slots // 4)
    wanted = [tokens // 2] * more + [tokens] * (slots - more) + [tokens // 2] * more
    return [Request(n, prompts[n % len(prompts)], most) for n, most in enumerate(wanted)]


def time_steps(
    make: MakeEngine, prompts: Sequence[tuple[int, ...]], slots: int, drafts: int, tokens: int
) -> list[Step]:
    """Steps at ``slots`` requests and fewer, with chains of 0 to ``drafts``; and some whose draft pass proposes one.

    ``tokens``: that the longest of the requests emits, about two steps for three of them.
    """
    engine = make(Turns(lengths_of(drafts)), slots, drafts)
    _serve(engine, timing_requests(prompts, slots, tokens))
    steps = list(engine.steps)
    if drafts > 1:
        engine = make(None, slots, 1)
        _serve(engine, [Request(n, prompts[n % len(prompts)], CHAIN_TOKENS) for n in range(slots)])
        # Only their draft passes are of another kind; the others lie between what has been timed.
        steps += engine.steps
    return steps


def _serve(engine: Engine, requests: list[Request]) -> None:
    for _ in engine.serve(requests):
        pass


def mean_context(prompts: Sequence[tuple[int, ...]], max_new_tokens: int) -> float:
    """Positions that a request holds on average while it is served."""
    return float(np.mean([len(prompt) for prompt in prompts])) + max_new_tokens / 2
