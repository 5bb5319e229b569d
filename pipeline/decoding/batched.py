"""Many requests decoded together with continuous batching: what a server does, in one process.

In each step, the target first reads prompts that wait, at most ``prefill_tokens`` of their tokens, so that a long
prompt delays nobody for long. Then one draft pass proposes a chain for every request, the policy decides how much of
each chain is verified, and one ragged pass of the target (pipeline/target/ragged.py) verifies it at a cost that follows
the number of tokens. A request that ends frees its slot for the next one.

Each answer is distributed as the target's own, and greedy answers are equal to the target's. This holds for every
policy that uses confidences only as scheduler.py allows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.confidence.temperatures import scaled
from pipeline.decoding.clock import Clock
from pipeline.decoding.sampling import Sampler, accept_all
from pipeline.decoding.scheduler import Array, Policy, candidates
from pipeline.decoding.single import Decoded, DecodeError, Round, cut_at_end
from pipeline.decoding.steps import Request, Step, Times
from pipeline.drafts.base import Draft, Proposals
from pipeline.target.model import States, Target
from pipeline.target.ragged import RaggedTarget

PREFILL_TOKENS = 512
REFERENCE_EVERY = 2  # steps


@dataclass(frozen=True)
class AnsweredRequest(Decoded):
    """A request's answer. The seconds of a step are shared equally among the requests that took part in it."""

    request: Request
    times: Times


@dataclass
class _Live:
    """A request that has a slot."""

    request: Request
    slot: int
    state: Any  # of the draft
    admitted: float
    filled: int = 0  # prompt tokens that the target has read
    draft_seconds: float = 0.0  # of the prefill so far
    verify_seconds: float = 0.0
    anchor: int = -1
    first_token: float = 0.0
    answer: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        """Prompt tokens that the target has not read yet."""
        return len(self.request.prompt) - self.filled

    @property
    def room(self) -> int:
        """How many drafts fit the token limit; it also leaves room for the target's own token after them."""
        return self.request.max_new_tokens - len(self.answer) - 1


class Engine:
    """Target and draft behind ``slots`` slots of ``capacity`` positions each; without a draft, it decodes plainly.

    ``policy`` maps confidences [R, G] to the number of drafts to verify for each request; None verifies all. The
    confidences are calibrated if there are ``temperatures`` [G], and all 1 if the draft has no confidence head.
    ``drafts`` limits the drafts of a request in one step. ``repetition_penalty`` (as in transformers) needs plain
    decoding.
    """

    def __init__(
        self, target: Target, draft: Draft | None, sampler: Sampler, policy: Policy | None, slots: int, capacity: int,
        drafts: int | None = None, temperatures: Sequence[float] | None = None,
        prefill_tokens: int = PREFILL_TOKENS, generator: torch.Generator | None = None,
        repetition_penalty: float | None = None,
    ) -> None:  # fmt: skip
        assert draft is None or repetition_penalty is None, (
            "a chain's later tokens would change its penalties"
        )
        self.target, self.draft, self.sampler, self.policy = target, draft, sampler, policy
        self.repetition_penalty = repetition_penalty
        self.ragged = RaggedTarget(target, slots, capacity)
        most = 0 if draft is None else draft.max_drafts
        self.drafts = most if drafts is None else min(drafts, most)
        self.temperatures = temperatures
        self.prefill_tokens, self.generator = prefill_tokens, generator
        # Returns the seconds of a fixed pass (``Step.pace``). They do not count as time of the run.
        self.reference: Callable[[], float] | None = None
        self.steps: list[Step] = []
        self._pace = 1.0
        self._live: list[_Live] = []
        self.clock = Clock(target.device)

    def serve(self, requests: Iterable[Request]) -> Iterator[AnsweredRequest]:
        """Answer ``requests``, none before its arrival. They are yielded in the order in which they end.

        Raises ``DecodeError`` naming a request that does not fit into a slot.
        """
        queue = deque(sorted(requests, key=lambda request: request.arrival))
        for request in queue:
            self._check(request)
        self.steps, self._live = [], []
        self.ragged.lengths = [0] * len(self.ragged.lengths)
        self.clock = Clock(self.target.device)
        with self.ragged.attention():
            while queue or self._live:
                if self.reference is not None and len(self.steps) % REFERENCE_EVERY == 0:
                    with self.clock.paused():
                        self._pace = self.reference()
                self._admit(queue)
                # With a draft, schedules and their simulation rely on the order of arrival.
                if self.draft is None:
                    self._close_gaps()
                yield from self._step()

    def _check(self, request: Request) -> None:
        """Refuse a request without a prompt, or one whose prompt and answer need more positions than a slot has."""
        needed = len(request.prompt) + request.max_new_tokens
        if not request.prompt or request.max_new_tokens < 1:
            raise DecodeError(
                f"request {request.number}: expected a prompt and max_new_tokens >= 1, got "
                f"{len(request.prompt)} ids and {request.max_new_tokens}"
            )
        if needed > self.ragged.capacity:
            raise DecodeError(
                f"request {request.number}: prompt and answer may take {needed} positions, a slot has "
                f"{self.ragged.capacity}"
            )

    def _admit(self, queue: deque[Request]) -> None:
        """Give free slots to requests that have arrived; with no live request, wait for the next arrival."""
        if not self._live and queue:
            time.sleep(max(0.0, queue[0].arrival - self.clock.time()))
            self.clock.lap()  # waiting counts for no request
        taken = {live.slot for live in self._live}
        for slot in range(len(self.ragged.lengths)):
            if not queue or queue[0].arrival > self.clock.time():
                return
            if slot not in taken:
                state = None if self.draft is None else self.draft.start()
                self.ragged.keep(slot, 0)
                self._live.append(_Live(queue.popleft(), slot, state, self.clock.time()))

    @torch.inference_mode()
    def _close_gaps(self) -> None:
        """Move the live requests to the first slots, in order, so that their attention needs no copy of the cache."""
        free = sorted(set(range(len(self._live))) - {live.slot for live in self._live})
        for live in [live for live in self._live if live.slot >= len(self._live)]:
            slot, live.slot = live.slot, free.pop(0)
            self.ragged.move(slot, live.slot)
        self._live.sort(key=lambda live: live.slot)

    def _step(self) -> list[AnsweredRequest]:
        """Prefill, then draft and verify. Returns the requests that ended."""
        began = self.clock.time()
        chunks = _chunks(self._live, self.prefill_tokens)
        first = self._prefill(chunks) if chunks else 0
        prefilled = sum(count for _, count in chunks)
        step = Step(
            began, emitted=first, prefilled=prefilled, prefill_seconds=self.clock.lap(), pace=self._pace
        )
        ready = [live for live in self._live if live.answer and not self._ended(live)]
        self.steps.append(self._decode(ready, step) if ready else step)
        ended = [live for live in self._live if live.answer and self._ended(live)]
        self._live = [live for live in self._live if live not in ended]
        return [self._answered(live) for live in ended]

    @torch.inference_mode()
    def _prefill(self, chunks: list[tuple[_Live, int]]) -> int:
        """Read the given number of prompt tokens of each request. Returns how many requests got their first token."""
        device, counts = self.target.device, [count for _, count in chunks]
        pieces = [torch.tensor(live.request.prompt[live.filled : live.filled + n]) for live, n in chunks]
        ids = torch.cat(pieces).to(device)
        states = self.ragged.run([live.slot for live, _ in chunks], counts, ids)
        for live, count in chunks:
            live.filled += count
        ready = [live for live, _ in chunks if not live.waiting]
        last = torch.tensor(counts).cumsum(0)[[not live.waiting for live, _ in chunks]] - 1
        logits = self._penalised(self.target.logits(states.last_hidden[last.to(device)]), ready)  # [ready, V]
        _, anchors = accept_all(ids[:0], [0] * len(ready), None, logits, self.sampler, self.generator)
        verify_seconds = self.clock.since()
        self._observe([live for live, _ in chunks], counts, ids, states)
        for live, count in chunks:
            share = count / len(ids)
            live.verify_seconds += share * verify_seconds
            live.draft_seconds += share * (self.clock.since() - verify_seconds)
        for live, anchor in zip(ready, anchors, strict=True):
            live.anchor, live.answer, live.first_token = anchor, [anchor], self.clock.time()
            start = len(live.request.prompt)
            live.rounds = [Round(start, 0, 0, 0, [anchor], None, live.draft_seconds, live.verify_seconds)]
        return len(ready)

    @torch.inference_mode()
    def _decode(self, live: list[_Live], step: Step) -> Step:
        """Do one round of each request. Returns ``step`` with this work added."""
        context = [self.ragged.lengths[one.slot] for one in live]
        anchors = torch.tensor([one.anchor for one in live], device=self.target.device)
        room = np.array([min(self.drafts, one.room) for one in live])
        made = self._propose(live, anchors, int(room.max()))
        draft_seconds = self.clock.lap()
        lengths = self._schedule(made, room)
        schedule_seconds = self.clock.lap()
        verified = self._verify(live, anchors, made, lengths)
        verify_seconds = self.clock.lap()
        self._record(live, context, made, lengths, verified)
        self._take_in(live, verified)
        draft_seconds += self.clock.lap()
        draft_share = (draft_seconds + schedule_seconds) / len(live)
        verify_share = verify_seconds / len(live)
        for one in live:
            one.rounds[-1] = replace(one.rounds[-1], draft_seconds=draft_share, verify_seconds=verify_share)
        rounds = [one.rounds[-1] for one in live]
        return replace(
            step, requests=len(live), context=sum(context), drafted=made.tokens.numel(), verified=len(verified.ids),
            accepted=sum(r.accepted for r in rounds), emitted=step.emitted + sum(len(r.tokens) for r in rounds),
            draft_seconds=draft_seconds, schedule_seconds=schedule_seconds, verify_seconds=verify_seconds,
        )  # fmt: skip

    def _verify(self, live: list[_Live], anchors: Tensor, made: Proposals, lengths: Array) -> _Verified:
        """Run the target over each anchor and the first ``lengths`` [R] drafts of its chain; keep the accepted ones."""
        chosen = _first(made.tokens, lengths)  # bool [R, n]
        rows = torch.cat([torch.ones_like(anchors, dtype=torch.bool)[:, None], chosen], 1)
        ids = torch.cat([anchors[:, None], made.tokens], 1)[rows]  # [T]
        slots = [one.slot for one in live]
        before = [self.ragged.lengths[slot] for slot in slots]
        states = self.ragged.run(slots, (lengths + 1).tolist(), ids)
        probabilities = None if made.probabilities is None else made.probabilities[chosen]
        logits = self._penalised(self.target.logits(states.last_hidden), live)
        accepted, following = accept_all(
            made.tokens[chosen], lengths.tolist(), probabilities, logits, self.sampler, self.generator
        )
        for slot, length, held in zip(slots, before, accepted, strict=True):
            self.ragged.keep(slot, length + 1 + held)
        return _Verified(rows, ids, states, accepted, following)

    def _penalised(self, logits: Tensor, live: list[_Live]) -> Tensor:
        """``logits`` [R, V], in which the tokens of each request's prompt and answer are less likely."""
        if self.repetition_penalty is None:
            return logits
        from transformers import RepetitionPenaltyLogitsProcessor

        process = RepetitionPenaltyLogitsProcessor(self.repetition_penalty)
        said = [torch.tensor([[*one.request.prompt, *one.answer]], device=logits.device) for one in live]
        rows = [process(ids, row[None].float()) for ids, row in zip(said, logits, strict=True)]
        return torch.cat(rows) if rows else logits

    def _take_in(self, live: list[_Live], verified: _Verified) -> None:
        """Let the draft observe the kept tokens of all requests that have not ended."""
        going = [not self._ended(one) for one in live]
        kept = np.where(going, np.array(verified.accepted) + 1, 0)
        taken = _first(verified.rows, kept)[verified.rows]  # bool [T]
        staying = [one for one, goes in zip(live, going, strict=True) if goes]
        states = States(verified.states.hidden[taken], verified.states.last_hidden[taken])
        self._observe(staying, kept[kept > 0].tolist(), verified.ids[taken], states)

    def _propose(self, live: list[_Live], anchors: Tensor, limit: int) -> Proposals:
        if self.draft is None or limit < 1:
            return Proposals(anchors.new_empty(len(anchors), 0), None, None)
        return self.draft.propose_all(
            [one.state for one in live], anchors, self.sampler.of_draft, self.generator, limit
        )

    def _schedule(self, made: Proposals, room: Array) -> Array:
        """How many drafts of each request to verify, int64 [R], at most its ``room`` [R]."""
        width = made.tokens.shape[1]
        counts: Array = np.minimum(room, width)
        if self.policy is not None and width:
            confidences = np.ones((len(room), width))
            if made.confidences is not None:
                confidences = made.confidences.double().cpu().numpy()
                if self.temperatures is not None:
                    confidences = scaled(confidences, np.asarray(self.temperatures)[:width])
            # A draft beyond its request's limit must not take the place of another request's draft.
            counts = np.minimum(self.policy(candidates(confidences, room)), room)
        return counts

    def _observe(self, live: list[_Live], counts: list[int], ids: Tensor, states: States) -> None:
        if self.draft is not None and live:
            self.draft.observe_all(
                [one.state for one in live], counts, ids, states.hidden, states.last_hidden
            )

    def _record(
        self, live: list[_Live], context: list[int], made: Proposals, lengths: Array, verified: _Verified
    ) -> None:
        """Append a round to each request; its seconds are still 0."""
        chains = made.tokens.tolist()
        confidences = None if made.confidences is None else made.confidences.tolist()
        for r, one in enumerate(live):
            n = int(lengths[r])
            one.anchor = verified.following[r]
            tokens, held, proposed = cut_at_end(
                chains[r][:n], verified.accepted[r], one.anchor, self.target.eos
            )
            own = None if confidences is None else confidences[r][:n]
            one.rounds.append(Round(context[r], n, proposed, held, tokens, own, 0.0, 0.0))
            one.answer += tokens

    def _ended(self, live: _Live) -> bool:
        return live.answer[-1] in self.target.eos or len(live.answer) >= live.request.max_new_tokens

    def _answered(self, live: _Live) -> AnsweredRequest:
        finish = "stop" if live.answer[-1] in self.target.eos else "length"
        times = Times(
            live.request.number, len(live.answer), live.request.arrival, live.admitted, live.first_token,
            self.clock.time(),
        )  # fmt: skip
        return AnsweredRequest(live.answer, finish, live.rounds, live.request, times)


@dataclass(frozen=True)
class _Verified:
    """A verification pass of T tokens. ``rows`` bool [R, 1+n] marks the verified part of each anchor and chain."""

    rows: Tensor
    ids: Tensor  # int64 [T]
    states: States  # [T, ..]
    accepted: list[int]
    following: list[int]  # the target's token after the accepted drafts


def _chunks(live: list[_Live], most: int) -> list[tuple[_Live, int]]:
    """The requests whose prompts are read next, and how many tokens of each: at most ``most``, first come first."""
    chunks, left = [], most
    for one in live:
        if one.waiting and left:
            chunks.append((one, min(one.waiting, left)))
            left -= chunks[-1][1]
    return chunks


def _first(like: Tensor, counts: Array) -> Tensor:
    """bool [R, n], the shape of ``like``: true for the first ``counts`` [R] of each row."""
    places = torch.arange(like.shape[1], device=like.device)
    return places < torch.from_numpy(np.asarray(counts)).to(like.device)[:, None]
