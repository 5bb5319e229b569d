"""Records what a draft proposes at every position of finished answers; simulations replay these records.

A decoding shows only the drafts at positions where its rounds began. A greedy answer does not depend on the drafts, so
the draft can be asked again at every position; its tokens hold as far as they agree with the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import torch

from pipeline.decoding.sampling import Sampler
from pipeline.drafts.base import Draft
from pipeline.target.model import States, Target
from stages.study.simulation import RecordedAnswer

BATCH = 16  # answers whose states are in memory at the same time


@dataclass
class _Known:
    """An answer in progress: the draft has observed ``prompt`` and the first ``seen`` tokens of ``answer``."""

    number: int
    prompt: tuple[int, ...]
    answer: list[int]
    states: States  # [1, prompt + answer - 1, ...]
    state: Any
    seen: int = 0


def record(
    target: Target, draft: Draft, prompts: Sequence[tuple[int, ...]], answers: Sequence[list[int]], limit: int
) -> list[RecordedAnswer]:
    """Greedy drafts at every position of ``answers`` to ``prompts`` (token ids); at most ``limit`` tokens were wanted.

    Confidences are not calibrated, and NaN without a confidence head.
    """
    recorded = []
    for start in range(0, len(prompts), BATCH):
        some = slice(start, start + BATCH)
        recorded += _record(target, draft, prompts[some], answers[some], limit)
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
        told = torch.full(made.tokens.shape, torch.nan) if made.confidences is None else made.confidences
        for one, tokens, row in zip(going, made.tokens.tolist(), told.double().cpu().numpy(), strict=True):
            confidences[one.number].append(row)
            held[one.number].append(_agreed(tokens, one.answer[out:]))
        _observe(draft, going)
    return [
        RecordedAnswer(
            len(one.prompt),
            limit,
            np.array(confidences[n]).reshape(-1, draft.max_drafts),
            np.array(held[n], dtype=np.int64),
        )
        for n, one in enumerate(known)
    ]


def _begin(target: Target, draft: Draft, number: int, prompt: tuple[int, ...], answer: list[int]) -> _Known:
    """Run the target once over prompt and answer, and let the draft observe the prompt."""
    ids = torch.tensor([*prompt, *answer[:-1]], device=target.device)
    states, state, size = target.run(ids[None]), draft.start(), len(prompt)
    draft.observe(state, ids[:size], states.hidden[0, :size], states.last_hidden[0, :size])
    return _Known(number, prompt, answer, states, state)


def _observe(draft: Draft, going: Sequence[_Known]) -> None:
    """Let the draft observe the next token of each answer that has a later token to draft."""
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
    """Number of leading tokens in which ``drafted`` and ``answer`` agree."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(drafted, answer, strict=False)))
