"""Many requests decoded together with continuous batching: what a server does, in one process.

A step: prompts that wait are prefilled (at most ``prefill_tokens`` of them, so that nobody waits long for a long
prompt), then one draft pass proposes a chain for every request, the policy says how much of each is verified, and one
ragged pass of the target verifies all of it (pipeline/target/ragged.py): its cost follows the number of tokens. A
request that ends frees its slot for the next one.

Each answer is distributed as the target's own whatever the policy, as long as that looks at confidences only in the way
that scheduler.py allows; greedy answers are equal to the target's.
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
from pipeline.decoding.sampling import Sampler, accept_all
from pipeline.decoding.scheduler import Array, Policy, candidates
from pipeline.decoding.single import DecodeError, Round, cut_at_end
from pipeline.decoding.steps import Request, Step, Times
from pipeline.drafts.base import Draft, Proposals
from pipeline.target.model import States, Target
from pipeline.target.ragged import RaggedTarget

PREFILL_TOKENS = 512
REFERENCE_EVERY = 2  # steps


@dataclass(frozen=True)
class AnsweredRequest:
    """A request's answer. ``rounds[0]`` is its prefill; a step's seconds are shared among those that took part."""

    request: Request
    answer: list[int]
    finish: str  # stop | length
    rounds: list[Round]
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
        """Prompt tokens still to be read."""
        return len(self.request.prompt) - self.filled

    @property
    def room(self) -> int:
        """Drafts that may be verified without going beyond the limit: the token after them counts too."""
        return self.request.max_new_tokens - len(self.answer) - 1


class Engine:
    """Target and draft (None: plain decoding) behind ``slots`` slots of ``capacity`` positions each.

    ``policy`` maps confidences [R, G] to how many drafts of each request are verified; None: all of them. It is given
    calibrated confidences where there are ``temperatures`` [G], and ones where the draft has no confidence head.
    ``drafts``: at most so many a request and step. ``repetition_penalty``: transformers' own, without a draft only.
    """

    def __init__(
        self,
        target: Target,
        draft: Draft | None,
        sampler: Sampler,
        policy: Policy | None,
        slots: int,
        capacity: int,
        drafts: int | None = None,
        temperatures: Sequence[float] | None = None,
        prefill_tokens: int = PREFILL_TOKENS,
        generator: torch.Generator | None = None,
        repetition_penalty: float | None = None,
    ) -> None:
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
        # A pass that is always the same; returns its seconds, which are not the run's (``Step.pace``).
        self.reference: Callable[[], float] | None = None
        self.steps: list[Step] = []
        self._pace = 1.0
        self._live: list[_Live] = []
        self._origin = self._mark = 0.0

    def serve(self, requests: Iterable[Request]) -> Iterator[AnsweredRequest]:
        """Answer ``requests``, each not before its arrival; they come out in the order in which they end.

        Raises ``DecodeError`` naming the request that no slot can hold.
        """
        queue = deque(sorted(requests, key=lambda request: request.arrival))
        for request in queue:
            self._check(request)
        self.steps, self._live = [], []
        self.ragged.lengths = [0] * len(self.ragged.lengths)
        self._origin = self._mark = self._now()
        with self.ragged.attention():
            while queue or self._live:
                self._refer()
                self._admit(queue)
                if self.draft is None:  # Schedules and their simulation go by the order of arrival.
                    self._close_gaps()
                yield from self._step()

    def _refer(self) -> None:
        """How fast the machine is now, every other step; the clock of the run stands still meanwhile."""
        if self.reference is not None and len(self.steps) % REFERENCE_EVERY == 0:
            began = self._now()
            self._pace = self.reference()
            self._origin += self._now() - began
            self._lap()

    def _check(self, request: Request) -> None:
        """Every token of prompt and answer needs a position, and so do drafts that are verified in vain."""
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
        """Give free slots to those that have arrived; wait for the next where there is nothing else to do."""
        if not self._live and queue:
            time.sleep(max(0.0, queue[0].arrival - self._time()))
            self._lap()  # waiting is nobody's time
        taken = {live.slot for live in self._live}
        for slot in range(len(self.ragged.lengths)):
            if not queue or queue[0].arrival > self._time():
                return
            if slot not in taken:
                state = None if self.draft is None else self.draft.start()
                self.ragged.keep(slot, 0)
                self._live.append(_Live(queue.popleft(), slot, state, self._time()))

    @torch.inference_mode()
    def _close_gaps(self) -> None:
        """Let the live requests have the first slots, in order: their attention needs no copy of the cache then."""
        free = sorted(set(range(len(self._live))) - {live.slot for live in self._live})
        for live in [live for live in self._live if live.slot >= len(self._live)]:
            slot, live.slot = live.slot, free.pop(0)
            self.ragged.move(slot, live.slot)
        self._live.sort(key=lambda live: live.slot)

    def _step(self) -> list[AnsweredRequest]:
        """Prefill, then draft and verify; those that ended."""
        began = self._time()
        chunks = _chunks(self._live, self.prefill_tokens)
        first = self._prefill(chunks) if chunks else 0
        prefill_seconds = self._lap()
        ready = [live for live in self._live if live.answer and not self._ended(live)]
        done = self._decode(ready) if ready else _Done()
        self.steps.append(
            Step(
                began, len(ready), done.context, done.drafted, done.verified, done.accepted, done.emitted + first,
                sum(count for _, count in chunks), prefill_seconds, done.draft_seconds, done.schedule_seconds,
                done.verify_seconds, self._pace,
            )
        )  # fmt: skip
        ended = [live for live in self._live if live.answer and self._ended(live)]
        self._live = [live for live in self._live if live not in ended]
        return [self._served(live) for live in ended]

    @torch.inference_mode()
    def _prefill(self, chunks: list[tuple[_Live, int]]) -> int:
        """Read so many prompt tokens of each request; how many thereby have their first token."""
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
        verify_seconds = self._since()
        self._observe([live for live, _ in chunks], counts, ids, states)
        for live, count in chunks:
            share = count / len(ids)
            live.verify_seconds += share * verify_seconds
            live.draft_seconds += share * (self._since() - verify_seconds)
        for live, anchor in zip(ready, anchors, strict=True):
            live.anchor, live.answer, live.first_token = anchor, [anchor], self._time()
            start = len(live.request.prompt)
            live.rounds = [Round(start, 0, 0, 0, [anchor], None, live.draft_seconds, live.verify_seconds)]
        return len(ready)

    @torch.inference_mode()
    def _decode(self, live: list[_Live]) -> _Done:
        """One round of each request."""
        context = [self.ragged.lengths[one.slot] for one in live]
        anchors = torch.tensor([one.anchor for one in live], device=self.target.device)
        room = np.array([min(self.drafts, one.room) for one in live])
        made = self._propose(live, anchors, int(room.max()))
        draft_seconds = self._lap()
        lengths = self._schedule(made, room)
        schedule_seconds = self._lap()
        verified = self._verify(live, anchors, made, lengths)
        verify_seconds = self._lap()
        emitted = self._record(live, context, made, lengths, verified)
        self._take_in(live, verified)
        draft_seconds += self._lap()
        for one in live:  # what the step took, shared
            one.rounds[-1] = replace(
                one.rounds[-1],
                draft_seconds=(draft_seconds + schedule_seconds) / len(live),
                verify_seconds=verify_seconds / len(live),
            )
        return _Done(
            sum(context), made.tokens.numel(), len(verified.ids), sum(one.rounds[-1].accepted for one in live),
            emitted, draft_seconds, schedule_seconds, verify_seconds,
        )  # fmt: skip

    def _verify(self, live: list[_Live], anchors: Tensor, made: Proposals, lengths: Array) -> _Verified:
        """Run the target over the anchors and the first ``lengths`` [R] drafts of each chain, keep what holds."""
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
        """``logits`` [R, V] with the tokens of each request's prompt and answer made less likely."""
        if self.repetition_penalty is None:
            return logits
        from transformers import RepetitionPenaltyLogitsProcessor

        process = RepetitionPenaltyLogitsProcessor(self.repetition_penalty)
        said = [torch.tensor([[*one.request.prompt, *one.answer]], device=logits.device) for one in live]
        rows = [process(ids, row[None].float()) for ids, row in zip(said, logits, strict=True)]
        return torch.cat(rows) if rows else logits

    def _take_in(self, live: list[_Live], verified: _Verified) -> None:
        """Let the draft observe what was kept of those that go on."""
        going = [not self._ended(one) for one in live]
        kept = np.where(going, np.array(verified.accepted) + 1, 0)
        taken = _first(verified.rows, kept)[verified.rows]  # bool [T]
        self._observe(
            [one for one, goes in zip(live, going, strict=True) if goes],
            kept[kept > 0].tolist(),
            verified.ids[taken],
            States(verified.states.hidden[taken], verified.states.last_hidden[taken]),
        )

    def _propose(self, live: list[_Live], anchors: Tensor, limit: int) -> Proposals:
        if self.draft is None or limit < 1:
            return Proposals(anchors.new_empty(len(anchors), 0), None, None)
        return self.draft.propose_all(
            [one.state for one in live], anchors, self.sampler.of_draft, self.generator, limit
        )

    def _schedule(self, made: Proposals, room: Array) -> Array:
        """How many drafts of each request are verified, int64 [R]; none beyond its ``room`` [R]."""
        width = made.tokens.shape[1]
        counts: Array = np.minimum(room, width)
        if self.policy is not None and width:
            confidences = np.ones((len(room), width))
            if made.confidences is not None:
                confidences = made.confidences.double().cpu().numpy()
                if self.temperatures is not None:
                    confidences = scaled(confidences, np.asarray(self.temperatures)[:width])
            # What would go beyond a request's limit is no candidate: it must not take the place of another's.
            counts = np.minimum(self.policy(candidates(confidences, room)), room)
        return counts

    def _observe(self, live: list[_Live], counts: list[int], ids: Tensor, states: States) -> None:
        if self.draft is not None and live:
            self.draft.observe_all(
                [one.state for one in live], counts, ids, states.hidden, states.last_hidden
            )

    def _record(
        self, live: list[_Live], context: list[int], made: Proposals, lengths: Array, verified: _Verified
    ) -> int:
        """Append a round to each request, its times still unknown; how many tokens were emitted."""
        chains = made.tokens.tolist()
        confidences = None if made.confidences is None else made.confidences.tolist()
        total = 0
        for r, one in enumerate(live):
            n = int(lengths[r])
            anchor = verified.following[r]
            tokens, held, proposed = cut_at_end(chains[r][:n], verified.accepted[r], anchor, self.target.eos)
            own = None if confidences is None else confidences[r][:n]
            one.rounds.append(Round(context[r], n, proposed, held, tokens, own, 0.0, 0.0))
            one.anchor = anchor
            one.answer += tokens
            total += len(tokens)
        return total

    def _ended(self, live: _Live) -> bool:
        return live.answer[-1] in self.target.eos or len(live.answer) >= live.request.max_new_tokens

    def _served(self, live: _Live) -> AnsweredRequest:
        finish = "stop" if live.answer[-1] in self.target.eos else "length"
        number, arrival = live.request.number, live.request.arrival
        times = Times(number, len(live.answer), arrival, live.admitted, live.first_token, self._time())
        return AnsweredRequest(live.request, live.answer, finish, live.rounds, times)

    # --- the clock: laps leave no time out ---

    def _now(self) -> float:
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        return time.perf_counter()

    def _time(self) -> float:
        """Seconds since the run began."""
        return self._now() - self._origin

    def _since(self) -> float:
        """Seconds since the last lap."""
        return self._now() - self._mark

    def _lap(self) -> float:
        before, self._mark = self._mark, self._now()
        return self._mark - before


@dataclass(frozen=True)
class _Verified:
    """A verification pass of T tokens; ``rows`` bool [R, 1+n] are those of each request's anchor and chain."""

    rows: Tensor
    ids: Tensor  # int64 [T]
    states: States  # [T, ..]
    accepted: list[int]
    following: list[int]  # the token after what was accepted


@dataclass(frozen=True)
class _Done:
    """What a draft and verification pass did; the fields are those of ``load.Step``."""

    context: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    emitted: int = 0
    draft_seconds: float = 0.0
    schedule_seconds: float = 0.0
    verify_seconds: float = 0.0


def _chunks(live: list[_Live], most: int) -> list[tuple[_Live, int]]:
    """Whose prompts are read next, and how much of each: at most ``most`` tokens, first come, first served."""
    chunks, left = [], most
    for one in live:
        if one.waiting and left:
            chunks.append((one, min(one.waiting, left)))
            left -= chunks[-1][1]
    return chunks


def _first(like: Tensor, counts: Array) -> Tensor:
    """bool of the shape [R, n] of ``like``: the first ``counts`` [R] of each row."""
    places = torch.arange(like.shape[1], device=like.device)
    return places < torch.from_numpy(np.asarray(counts)).to(like.device)[:, None]
