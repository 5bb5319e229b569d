"""Simulates the engine under load step by step, from recorded answers, also for machines that are not at hand.

Each request replays one recorded answer. The record holds a draft of G tokens for every position, with its confidences
and the number of its tokens that held. A step that schedules n of them emits min(n, held) + 1 tokens and goes on behind
them. The engine does the same under greedy decoding for any schedule; only the seconds come from a model (costs.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data_specs.errors import UserError
from pipeline.decoding.scheduler import Policy, candidates
from pipeline.decoding.single import Round
from pipeline.decoding.steps import Step, Times
from stages.study.costs import TableCosts

Array = np.ndarray


class SimulationError(UserError):
    """A pool or a load that cannot be simulated."""


@dataclass(frozen=True)
class RecordedAnswer:
    """A recorded answer of L tokens. Row e - 1 of the arrays is about the draft made after e tokens."""

    prompt: int  # tokens
    limit: int  # tokens asked for, at most
    confidences: Array  # [L-1, G], how likely each draft is to hold
    held: Array  # [L-1], how many leading drafts do hold

    @property
    def length(self) -> int:
        """Tokens of the answer."""
        return len(self.held) + 1


@dataclass(frozen=True)
class Pool:
    """Answers as flat arrays: the rows of answer a in ``confidences`` and ``held`` begin at ``first[a]``."""

    prompts: Array  # int64 [A]
    lengths: Array  # int64 [A]
    limits: Array  # int64 [A]
    first: Array  # int64 [A]
    confidences: Array  # fp64 [N, G]
    held: Array  # int64 [N]

    @classmethod
    def of(cls, answers: Sequence[RecordedAnswer]) -> Pool:
        """Join ``answers``; raises ``SimulationError`` for none, or for drafts of different lengths."""
        widths = {a.confidences.shape[1] for a in answers}
        if len(widths) != 1:
            raise SimulationError(f"pool: expected answers with drafts of one length, got {sorted(widths)}")
        lengths = np.array([a.length for a in answers])
        return cls(
            prompts=np.array([a.prompt for a in answers]),
            lengths=lengths,
            limits=np.array([a.limit for a in answers]),
            first=np.concatenate([[0], np.cumsum(lengths - 1)[:-1]]),
            confidences=np.concatenate([a.confidences for a in answers]).astype(np.float64),
            held=np.concatenate([a.held for a in answers]).astype(np.int64),
        )

    @property
    def drafts(self) -> int:
        """G, the drafts at a position."""
        return self.confidences.shape[1]


@dataclass(frozen=True)
class Load:
    """Requests in the order of their arrival."""

    answers: Array  # [n], the answer of the pool that each replays
    arrivals: Array  # [n], seconds


@dataclass(frozen=True)
class SimulatedRun:
    """What the engine would have recorded."""

    steps: list[Step]
    times: list[Times]  # one per request, by number


def answer_of_rounds(prompt: int, limit: int, rounds: Sequence[Round], drafts: int) -> RecordedAnswer:
    """An answer from the rounds of one decoding with full chains (``rounds[0]`` is the prefill).

    All positions that a round emitted get its confidences and outcome, because a round shows only the draft at its
    start. So a stretch of text counts by its tokens, no matter how few rounds it took.
    """
    confidences, held = np.zeros((0, drafts)), np.zeros(0, dtype=np.int64)
    for r in rounds[1:]:
        row = np.zeros(drafts)
        told = [np.nan] * r.drafted if r.confidences is None else r.confidences[:drafts]
        row[: len(told)] = told
        confidences = np.concatenate([confidences, np.tile(row, (len(r.tokens), 1))])
        held = np.concatenate([held, np.full(len(r.tokens), r.accepted)])
    return RecordedAnswer(prompt, limit, confidences, held)


def cycle(pool: Pool, count: int, arrivals: Array | None = None, seed: int | None = None) -> Load:
    """``count`` requests that replay the pool's answers in turn from a random one on (from the first without ``seed``).

    Without ``arrivals``, all arrive at time 0.
    """
    size = len(pool.lengths)
    start = 0 if seed is None else int(np.random.default_rng(seed).integers(size))
    return Load((start + np.arange(count)) % size, np.zeros(count) if arrivals is None else arrivals)


def poisson(rate: float, count: int, seed: int) -> Array:
    """Arrival times [count] in seconds of a Poisson stream of ``rate`` requests per second."""
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))


def simulate(
    pool: Pool,
    load: Load,
    costs: TableCosts,
    policy: Policy | None,
    slots: int,
    drafts: int | None = None,
    prefill_tokens: int = 512,
) -> SimulatedRun:
    """Serve ``load`` with ``slots``; without a ``policy``, whole chains are verified.

    A chain has at most ``drafts`` tokens (None: as many as recorded; 0: plain decoding). Arrivals must ascend. Raises
    ``SimulationError`` without slots or requests, or for more drafts than were recorded.
    """
    if slots < 1 or prefill_tokens < 1 or not len(load.answers):
        raise SimulationError(
            f"slots={slots}, prefill_tokens={prefill_tokens}, requests={len(load.answers)}: expected at least 1 of each"
        )
    chain = pool.drafts if drafts is None else drafts
    if chain > pool.drafts:
        raise SimulationError(f"drafts={chain}: the recorded drafts have only {pool.drafts} tokens")
    run = _Run(pool, load, costs, policy, slots, chain, prefill_tokens)
    while run.finished < len(load.answers):
        run.step()
    return SimulatedRun(run.steps, run.times())


class _Run:
    """The state between steps: arrays over the slots, [slots], and over the requests, [n]."""

    def __init__(
        self,
        pool: Pool,
        load: Load,
        costs: TableCosts,
        policy: Policy | None,
        slots: int,
        chain: int,
        prefill_tokens: int,
    ) -> None:
        self.pool, self.load, self.costs, self.policy = pool, load, costs, policy
        self.chain, self.prefill_tokens = chain, prefill_tokens
        self.request = np.full(slots, -1)  # number of the request in each slot; -1 if it is free
        self.answer = np.zeros(slots, dtype=np.int64)
        self.unread = np.zeros(slots, dtype=np.int64)  # prompt tokens not yet prefilled
        self.out = np.zeros(slots, dtype=np.int64)  # tokens emitted
        self.now, self.admitted, self.finished = 0.0, 0, 0
        self.steps: list[Step] = []
        count = len(load.answers)
        self.times_of = {name: np.zeros(count) for name in ("admitted", "first_token", "finished")}

    def step(self) -> None:
        """One step of the engine: admit, prefill, draft, schedule, verify."""
        self._admit()
        began = self.now
        prefilled, prefill = self._prefill()
        emitted = self._first_tokens()
        slots = np.flatnonzero((self.request >= 0) & (self.out > 0) & ~self._complete())
        if not len(slots):
            self.steps.append(Step(began, 0, 0, 0, 0, 0, emitted, prefilled, prefill, 0.0, 0.0, 0.0))
            self._leave()
            return
        context = int((self.pool.prompts[self.answer[slots]] + self.out[slots] - 1).sum())
        lengths, drafted, draft, schedule = self._scheduled(slots)
        verified = len(slots) + int(lengths.sum())
        verify = float(self.costs.verify_seconds(len(slots), verified, context))
        self.now += draft + schedule + verify
        accepted, new = self._verified(slots, lengths)
        self._leave()
        counts = (drafted, verified, accepted, emitted + new, prefilled)
        self.steps.append(Step(began, len(slots), context, *counts, prefill, draft, schedule, verify))

    def times(self) -> list[Times]:
        """The times of each request, by number."""
        columns = (self.pool.lengths[self.load.answers], self.load.arrivals, *self.times_of.values())
        return [Times(n, *row) for n, row in enumerate(zip(*(c.tolist() for c in columns), strict=True))]

    def _admit(self) -> None:
        """Give free slots to waiting requests in order of arrival; if all slots are free, wait for the next arrival."""
        if not (self.request >= 0).any():
            self.now = max(self.now, float(self.load.arrivals[self.admitted]))
        arrived = int(np.searchsorted(self.load.arrivals, self.now, side="right"))
        free = np.flatnonzero(self.request < 0)[: max(0, arrived - self.admitted)]
        numbers = self.admitted + np.arange(len(free))
        self.admitted += len(free)
        self.request[free], self.answer[free] = numbers, self.load.answers[numbers]
        self.unread[free], self.out[free] = self.pool.prompts[self.answer[free]], 0
        self.times_of["admitted"][numbers] = self.now

    def _prefill(self) -> tuple[int, float]:
        """Prefill up to ``prefill_tokens`` of the prompts, first come first served; returns tokens and seconds."""
        reading = np.flatnonzero((self.request >= 0) & (self.unread > 0))
        reading = reading[np.argsort(self.request[reading])]
        left = self.unread[reading]
        taken = np.clip(self.prefill_tokens - (np.cumsum(left) - left), 0, left)
        self.unread[reading] -= taken
        tokens = int(taken.sum())
        seconds = self.costs.prefill_seconds(tokens)
        self.now += seconds
        return tokens, seconds

    def _first_tokens(self) -> int:
        """Let requests whose prompt is prefilled emit their first token; returns how many do."""
        ready = np.flatnonzero((self.request >= 0) & (self.unread == 0) & (self.out == 0))
        self.out[ready] = 1
        self.times_of["first_token"][self.request[ready]] = self.now
        return len(ready)

    def _scheduled(self, slots: Array) -> tuple[Array, int, float, float]:
        """Chain lengths [r], number of drafted tokens, and the seconds of drafting and scheduling."""
        # One more token is emitted behind a chain, and all of them must fit into the limit.
        room = np.minimum(self.pool.limits[self.answer[slots]] - self.out[slots] - 1, self.chain)
        width = int(room.max())
        if not width:
            return room, 0, 0.0, 0.0
        lengths, schedule = room, 0.0
        if self.policy is not None:
            began = time.perf_counter()
            confidences = self.pool.confidences[self._rows(slots), :width]
            lengths = np.minimum(self.policy(candidates(confidences, room)), room)
            known = self.costs.schedule_seconds(len(slots))
            schedule = time.perf_counter() - began if known is None else known
        return lengths, width * len(slots), self.costs.draft_seconds(len(slots), width), schedule

    def _verified(self, slots: Array, lengths: Array) -> tuple[int, int]:
        """Emit the drafts that hold, up to the answer's end; returns the numbers of accepted drafts and new tokens."""
        left = self.pool.lengths[self.answer[slots]] - self.out[slots]
        holds = np.minimum(lengths, self.pool.held[self._rows(slots)])
        new = np.minimum(holds + 1, left)
        self.out[slots] += new
        return int(np.minimum(holds, left).sum()), int(new.sum())

    def _complete(self) -> Array:
        """Whether all tokens of the answer are emitted, bool [slots]."""
        return self.out >= self.pool.lengths[self.answer]

    def _leave(self) -> None:
        """Free the slots of complete answers."""
        done = np.flatnonzero((self.request >= 0) & (self.out > 0) & self._complete())
        self.times_of["finished"][self.request[done]] = self.now
        self.request[done] = -1
        self.finished += len(done)

    def _rows(self, slots: Array) -> Array:
        return self.pool.first[self.answer[slots]] + self.out[slots] - 1
