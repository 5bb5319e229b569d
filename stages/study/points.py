"""What a study measures: its policies as the engine takes them, its points, its requests. Pure; nothing runs here.

Policies by name: ``plain`` (no draft), ``fixed_N`` (a draft of N tokens, all verified: ``fixed_1`` is what serving with
MTP-1 does; ``fixed`` is the longest there is), ``threshold``, ``algorithm_1``, ``asynchronous`` (scheduler.py).
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
    """One policy. ``drafts`` tokens are proposed a request and step (0: no draft)."""

    name: str
    drafts: int
    least: float = 0.0  # of ``threshold``

    def policy(self, rate: Rate, confident: bool = True) -> Policy | None:
        """What schedules, anew for each run (the asynchronous form remembers); None: all that is drafted.

        ``confident``: the draft has a confidence head; raises ``ScheduleError`` where the policy needs one.
        """
        if self.name not in CONFIDENT:
            return None
        return policy(self.name, rate, least=self.least, confident=confident)


@dataclass(frozen=True)
class StudyPoint:
    """One unit of work: ``arm`` served with ``concurrency`` slots."""

    arm: Arm
    concurrency: int
    repeat: int

    @property
    def unit(self) -> str:
        """Its name, as the files have it."""
        return f"c{self.concurrency:04d}-{self.arm.name}-{self.repeat}"


def arms(names: Sequence[str], drafts: int, threshold: float) -> list[Arm]:
    """The policies ``names`` of a draft with ``drafts`` tokens a block; raises ``StudyError`` naming what cannot be."""
    return [_arm(name, drafts, threshold) for name in names]


def _arm(name: str, drafts: int, threshold: float) -> Arm:
    if name == "plain":
        return Arm(name, 0)
    if name in CONFIDENT:
        return Arm(name, drafts, threshold)
    found = re.fullmatch(r"fixed(?:_(\d+))?", name)
    assert found, f"{name}: pipeline/config/study.py lets no other policy through"
    length = int(found[1] or drafts)
    if not 1 <= length <= drafts:
        raise StudyError(f"study.policies: {name}: the draft proposes 1 to {drafts} tokens")
    return Arm(f"fixed_{length}", length)


def points(study: StudyConfig, chosen: Sequence[Arm]) -> list[StudyPoint]:
    """All points; repeats lie as far apart as can be, because a machine's speed drifts."""
    return [
        StudyPoint(arm, concurrency, repeat)
        for repeat in range(study.repeats)
        for concurrency in study.concurrencies
        for arm in chosen
    ]


def request_count(study: StudyConfig, concurrency: int) -> int:
    """Requests of a point."""
    return max(study.least_requests, study.requests_per_slot * concurrency)


def requests(prompts: Sequence[tuple[int, ...]], count: int, max_new_tokens: int) -> list[Request]:
    """``count`` requests that ask the prompts in turn, all at once."""
    return [Request(n, prompts[n % len(prompts)], max_new_tokens) for n in range(count)]
