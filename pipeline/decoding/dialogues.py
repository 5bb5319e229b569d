"""Several prompts answered at a time by the batched engine, as rows of the round table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from data_specs.evaluation import DRAFT, PLAIN
from pipeline.decoding.batched import Engine
from pipeline.decoding.dialogue import WARM_UP_TOKENS, Dialogue, RoundRow, Speaker, Turn
from pipeline.decoding.scheduler import threshold
from pipeline.decoding.steps import Request
from pipeline.prompts.benchmarks import Prompt

Asked = list[tuple[Dialogue, Turn]]


def answer_together(
    speaker: Speaker, prompts: Sequence[Prompt], advance: Callable[[Prompt], None]
) -> list[RoundRow]:
    """Rows of all ``prompts``, ``speaker.batch`` at a time; ``advance`` is called when a prompt is done.

    The rows are those of ``Speaker.answer``, except that the prompts in a step share its seconds. All first turns are
    answered first, then all second turns, and so on.
    """
    talks = [Dialogue(speaker, prompt) for prompt in prompts]
    asked = _ask(talks, advance)
    while asked:
        _answer(speaker, asked, DRAFT)
        if speaker.baseline:
            _answer(speaker, asked, PLAIN)
        asked = _ask([talk for talk, _ in asked], advance)
    return [row for talk in talks for row in talk.rows]


def _ask(talks: list[Dialogue], advance: Callable[[Prompt], None]) -> Asked:
    """The dialogues that have another turn, with that turn; ``advance`` is called for the others."""
    turns = [(talk, talk.ask()) for talk in talks]
    for talk, turn in turns:
        if turn is None:
            advance(talk.prompt)
    return [(talk, turn) for talk, turn in turns if turn is not None]


def warm_up(speaker: Speaker, prompts: Sequence[Prompt]) -> None:
    """Answer the first prompts with a few tokens before anything is timed."""
    short = replace(speaker, max_new_tokens=WARM_UP_TOKENS)
    answer_together(short, prompts[: speaker.batch], lambda prompt: None)


def _answer(speaker: Speaker, asked: Asked, mode: str) -> None:
    """Answer one turn of every dialogue, with the draft or without it."""
    requests = [Request(n, tuple(turn.ids), turn.limit) for n, (_, turn) in enumerate(asked)]
    capacity = max(len(request.prompt) + request.max_new_tokens for request in requests)
    what = [(talk.prompt.benchmark, talk.prompt.index, talk.prompt.key, turn.number) for talk, turn in asked]
    # The threshold applies to the draft's raw confidences, by position; None verifies every draft.
    policy = partial(threshold, least=np.array(speaker.thresholds)) if speaker.threshold > 0 else None
    engine = Engine(
        speaker.target, speaker.draft if mode == DRAFT else None, speaker.sampler, policy, speaker.batch, capacity,
        generator=speaker.generator(what, mode),
    )  # fmt: skip
    for served in engine.serve(requests):
        asked[served.request.number][0].take(served, mode)
