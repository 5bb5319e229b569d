"""What a draft would have proposed at every position of answers that are known: the pool that simulations replay.

With greedy decoding an answer does not depend on what was drafted, so the draft can be asked at each of its positions,
and its tokens held as far as they are the answer's. A decoding tells of the positions where its rounds began only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pipeline.decoding.sampling import Sampler
from pipeline.drafts.base import Draft
from pipeline.target.model import States, Target
from stages.study.simulation import RecordedAnswer

BATCH = 16  # answers whose states are in memory together


@dataclass
class _Known:
    """One answer on its way: the draft has observed ``prompt`` and the first ``seen`` tokens of ``answer``."""

    number: int
    prompt: tuple[int, ...]
    answer: list[int]
    states: States  # [1, prompt + answer - 1, ...]
    state: Any
    seen: int = 0


def record(
    target: Target,
    draft: Draft,
    prompts: Sequence[tuple[int, ...]],
    answers: Sequence[list[int]],
    limit: int,
    advance: Callable[[int], None] = lambda _: None,
) -> list[RecordedAnswer]:
    """Greedy drafts at every position of ``answers`` to ``prompts`` (ids), for at most ``limit`` tokens each.

    Confidences are the head's own; NaN without one. ``advance`` is told of answers that are done.
    """
    recorded = []
    for start in range(0, len(prompts), BATCH):
        some = slice(start, start + BATCH)
        recorded += _record(target, draft, prompts[some], answers[some], limit)
        advance(len(prompts[some]))
    return recorded


@torch.inference_mode()
def _record(
    target: Target, draft: Draft, prompts: Sequence[tuple[int, ...]], answers: Sequence[list[int]], limit: int
) -> list[RecordedAnswer]:
    known = [_begin(target, draft, n, *pair) for n, pair in enumerate(zip(prompts, answers, strict=True))]
    confidences: list[list[np.ndarray]] = [[] for _ in known]
    held: list[list[int]] = [[] for _ in known]
    for out in range(1, max(len(answer) for answer in answers)):
        going = [one for one in known if len(one.answer) > out]
        anchors = torch.tensor([one.answer[out - 1] for one in going], device=target.device)
        made = draft.propose_all([one.state for one in going], anchors, Sampler())
        told = np.full(made.tokens.shape, np.nan) if made.confidences is None else _array(made.confidences)
        for row, one in enumerate(going):
            confidences[one.number].append(told[row])
            held[one.number].append(_agreed(made.tokens[row].tolist(), one.answer[out:]))
        _observe(draft, going)
    empty = np.zeros((0, draft.max_drafts))
    return [
        RecordedAnswer(
            len(one.prompt),
            limit,
            np.array(confidences[n]) if held[n] else empty,
            np.array(held[n], dtype=np.int64),
        )
        for n, one in enumerate(known)
    ]


def _begin(target: Target, draft: Draft, number: int, prompt: tuple[int, ...], answer: list[int]) -> _Known:
    """One pass of the target over prompt and answer; the draft observes the prompt."""
    ids = torch.tensor([*prompt, *answer[:-1]], device=target.device)
    states, state, size = target.run(ids[None]), draft.start(), len(prompt)
    draft.observe(state, ids[:size], states.hidden[0, :size], states.last_hidden[0, :size])
    return _Known(number, prompt, answer, states, state)


def _observe(draft: Draft, going: Sequence[_Known]) -> None:
    """The next token of each answer that has one left to draft after."""
    going = [one for one in going if one.seen < len(one.answer) - 1]
    if not going:
        return
    places = [len(one.prompt) + one.seen for one in going]
    tokens = torch.tensor([one.answer[one.seen] for one in going], device=going[0].states.hidden.device)
    hidden = torch.stack([one.states.hidden[0, at] for one, at in zip(going, places, strict=True)])
    last = torch.stack([one.states.last_hidden[0, at] for one, at in zip(going, places, strict=True)])
    draft.observe_all([one.state for one in going], [1] * len(going), tokens, hidden, last)
    for one in going:
        one.seen += 1


def _agreed(drafted: list[int], answer: list[int]) -> int:
    """Leading tokens of ``drafted`` that are those of ``answer``."""
    pairs = zip(drafted, answer, strict=False)
    return next(
        (n for n, (mine, theirs) in enumerate(pairs) if mine != theirs), min(len(drafted), len(answer))
    )


def _array(values: torch.Tensor) -> np.ndarray:
    return values.double().cpu().numpy()
