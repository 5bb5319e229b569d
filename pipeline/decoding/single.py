"""Speculative decoding of one sequence with a chain of drafts, and plain decoding by the same loop.

In each round, the draft proposes x_1 .. x_n after the anchor x_0. The target runs once over [x_0, x_1 .. x_n] and keeps
the leading drafts that it accepts. Its own token after them is the next anchor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from data_specs.errors import UserError
from pipeline.decoding.clock import Clock
from pipeline.decoding.sampling import Sampler, accept
from pipeline.drafts.base import Draft, Proposal
from pipeline.target.model import Target


class DecodeError(UserError):
    """A prompt cannot be decoded; the message says what was expected."""


@dataclass(frozen=True)
class Round:
    """One run of the target. data_specs/evaluation.py describes each field."""

    context: int
    drafted: int
    proposed: int
    accepted: int
    tokens: list[int]  # emitted in this round
    confidences: list[float] | None
    draft_seconds: float  # proposing, and observing the verified states
    verify_seconds: float  # running the target, accepting, cropping its cache


@dataclass(frozen=True)
class Decoded:
    """An answer. ``rounds[0]`` is the prefill; the tokens of all rounds, in order, are ``answer``."""

    answer: list[int]
    finish: str  # stop | length
    rounds: list[Round]


@torch.inference_mode()
def decode(
    target: Target, draft: Draft | None, prompt: Sequence[int], sampler: Sampler, max_new_tokens: int,
    generator: torch.Generator | None = None, thresholds: Sequence[float] = (),
) -> Decoded:  # fmt: skip
    """Answer ``prompt`` with at most ``max_new_tokens`` tokens, stopping after any of ``target.eos``.

    Without a draft, each round emits one token. A chain ends before the first draft k whose confidence is below
    ``thresholds[k]``, and never exceeds the tokens that may still be emitted, so that the limit cuts no accepted token.
    Raises ``DecodeError`` for an empty prompt or a limit below 1.
    """
    if not len(prompt) or max_new_tokens < 1:
        raise DecodeError(
            f"expected a prompt and max_new_tokens >= 1, got {len(prompt)} ids and {max_new_tokens}"
        )
    loop = _Loop(target, draft, sampler, generator, thresholds)
    rounds = [loop.prefill(torch.tensor(prompt, device=target.device))]
    answer = list(rounds[0].tokens)
    while answer[-1] not in target.eos and len(answer) < max_new_tokens:
        rounds.append(loop.round(limit=max_new_tokens - len(answer) - 1))
        answer += rounds[-1].tokens
    return Decoded(answer, "stop" if answer[-1] in target.eos else "length", rounds)


class _Loop:
    """State between rounds: both caches hold the positions before ``anchor``."""

    def __init__(
        self, target: Target, draft: Draft | None, sampler: Sampler, generator: torch.Generator | None,
        thresholds: Sequence[float],
    ) -> None:  # fmt: skip
        self.target, self.draft = target, draft
        self.sampler, self.generator, self.thresholds = sampler, generator, thresholds
        self.cache = target.new_cache()
        self.state = draft.start() if draft is not None else None
        self.nothing = Proposal(torch.empty(0, dtype=torch.long, device=target.device), None, None)
        self.context = 0
        self.anchor = -1
        self.clock = Clock(target.device)

    def prefill(self, prompt: Tensor) -> Round:
        """Run the target over ``prompt`` int64 [S] and draw the first token."""
        start = len(prompt)
        states = self.target.run(prompt[None], cache=self.cache)
        logits = self.target.logits(states.last_hidden[0, -1:])  # [1, V]
        _, self.anchor = accept(self.nothing.tokens, None, logits, self.sampler, self.generator)
        verify_seconds = self.clock.lap()
        self._observe(prompt, states.hidden[0], states.last_hidden[0])
        return Round(start, 0, 0, 0, [self.anchor], None, self.clock.lap(), verify_seconds)

    def round(self, limit: int) -> Round:
        """Draft up to ``limit`` tokens, verify them and keep the accepted ones."""
        context = self.context
        proposal = self.nothing
        if self.draft is not None and limit > 0:
            proposal = self.draft.propose(
                self.state, self.anchor, self.sampler.of_draft, self.generator, min(limit, self.draft.max_drafts),
                self.thresholds,
            )  # fmt: skip
        ids = torch.cat([proposal.tokens.new_tensor([self.anchor]), proposal.tokens])  # [n+1]
        draft_seconds = self.clock.lap()
        states = self.target.run(ids[None], cache=self.cache)
        logits = self.target.logits(states.last_hidden[0])  # [n+1, V]
        accepted, bonus = accept(
            proposal.tokens, proposal.probabilities, logits, self.sampler, self.generator
        )
        kept = 1 + accepted
        self.target.crop(self.cache, context + kept)
        verify_seconds = self.clock.lap()
        self._observe(ids[:kept], states.hidden[0, :kept], states.last_hidden[0, :kept])
        self.anchor = bonus
        draft_seconds += self.clock.lap()
        drafted = proposal.tokens.tolist()
        confidences = None if proposal.confidences is None else proposal.confidences.tolist()
        tokens, accepted, proposed = cut_at_end(drafted, accepted, bonus, self.target.eos)
        return Round(
            context, len(drafted), proposed, accepted, tokens, confidences, draft_seconds, verify_seconds
        )

    def _observe(self, tokens: Tensor, hidden: Tensor, last_hidden: Tensor) -> None:
        if self.draft is not None:
            self.draft.observe(self.state, tokens, hidden, last_hidden)
        self.context += len(tokens)


def cut_at_end(
    drafted: list[int], accepted: int, bonus: int, eos: Sequence[int]
) -> tuple[list[int], int, int]:
    """(emitted tokens, accepted, proposed) of a round that verified ``drafted``; ``bonus`` follows the accepted drafts.

    The round is cut at its first EOS: drafts after it count neither as accepted nor as proposed (pitfall 39).
    """
    tokens = drafted[:accepted] + [bonus]
    end = next((i + 1 for i, token in enumerate(tokens[:accepted]) if token in eos), None)
    return (tokens, accepted, len(drafted)) if end is None else (tokens[:end], end, end)
