"""The policies, points and requests of a study, as pure functions.

Policies: ``plain`` (no draft), ``fixed_N`` (N drafts, all verified; ``fixed_1`` is what serving with MTP-1 does),
``fixed`` (a whole block), ``threshold``, ``algorithm_1``, ``asynchronous`` (scheduler.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from data_specs.study import StudyError
from pipeline.config import StudyConfig
from pipeline.decoding.scheduler import Policy, Rate, policy
from pipeline.decoding.steps import Request

CONFIDENT = ("threshold", "algorithm_1", "asynchronous")  # need a confidence head
SCHEDULED = ("algorithm_1", "asynchronous")  # need the cost of a step


@dataclass(frozen=True)
class Arm:
    """One policy."""

    name: str
    drafts: int  # tokens proposed per request and step; 0 without a draft
    least: float = 0.0  # the confidence at which ``threshold`` cuts

    def policy(self, rate: Rate, confident: bool = True) -> Policy | None:
        """A new scheduler for one run (the asynchronous policy has a state); None verifies all drafts.

        ``confident`` says whether the draft has a confidence head. Raises ``ScheduleError`` if the policy needs one.
        """
        if self.name not in CONFIDENT:
            return None
        return policy(self.name, rate, least=self.least, confident=confident)


@dataclass(frozen=True)
class StudyPoint:
    """One unit of work: serve with the policy ``arm`` and ``concurrency`` slots."""

    arm: Arm
    concurrency: int
    repeat: int

    @property
    def unit(self) -> str:
        """Its name, also used for its files."""
        return f"c{self.concurrency:04d}-{self.arm.name}-{self.repeat}"


def arms(names: Sequence[str], drafts: int, threshold: float) -> list[Arm]:
    """The policies ``names`` for a draft of ``drafts`` tokens; raises ``StudyError`` naming a length out of range."""
    return [_arm(name, drafts, threshold) for name in names]


def _arm(name: str, drafts: int, threshold: float) -> Arm:
    if name == "plain":
        return Arm(name, 0)
    if name in CONFIDENT:
        return Arm(name, drafts, threshold)
    found = re.fullmatch(r"fixed(?:_(\d+))?", name)
    assert found, f"{name}: pipeline/config/study.py allows no other policy"
    length = int(found[1] or drafts)
    if not 1 <= length <= drafts:
        raise StudyError(f"study.policies: {name}: the draft proposes 1 to {drafts} tokens")
    return Arm(f"fixed_{length}", length)


def points(study: StudyConfig, chosen: Sequence[Arm]) -> list[StudyPoint]:
    """All points; repeats of a point lie as far apart as possible, because the machine's speed drifts."""
    return [
        StudyPoint(arm, concurrency, repeat)
        for repeat in range(study.repeats)
        for concurrency in study.concurrencies
        for arm in chosen
    ]


def request_count(study: StudyConfig, concurrency: int) -> int:
    """Number of requests of a point."""
    return max(study.least_requests, study.requests_per_slot * concurrency)


def requests(prompts: Sequence[tuple[int, ...]], count: int, max_new_tokens: int) -> list[Request]:
    """``count`` requests that cycle through the prompts and all arrive at time 0."""
    return [Request(n, prompts[n % len(prompts)], max_new_tokens) for n in range(count)]
