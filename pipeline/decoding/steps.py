"""What the engine is asked for and what it did, real or simulated alike; every figure under load comes from these.

Times are seconds since the run began, on the clock of the run (the wall clock, or the simulation's).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """A prompt to answer: ``prompt`` ids, at most ``max_new_tokens`` tokens, not before ``arrival``."""

    number: int
    prompt: tuple[int, ...]
    max_new_tokens: int
    arrival: float = 0.0


@dataclass(frozen=True)
class Times:
    """One request's way through the engine. ``tokens`` were emitted, the first of them at ``first_token``."""

    number: int
    tokens: int
    arrival: float
    admitted: float  # when it was given a slot
    first_token: float
    finished: float

    @property
    def speed(self) -> float | None:
        """Tokens a second that the user sees after the first token (None for answers of one token)."""
        return (self.tokens - 1) / (self.finished - self.first_token) if self.tokens > 1 else None


@dataclass(frozen=True)
class Step:
    """One step of the engine: prompts prefilled, then one draft pass, a schedule and one verification pass.

    ``verified`` is B, the tokens of the verification pass: an anchor a request and the drafts that were scheduled.
    A step may only prefill (``requests`` 0).
    """

    began: float
    requests: int  # that took part in the draft and verification pass
    context: int  # sum of their positions before the anchor
    drafted: int
    verified: int
    accepted: int
    emitted: int  # tokens that became output, those of finished prefills included
    prefilled: int  # prompt tokens
    prefill_seconds: float
    draft_seconds: float
    schedule_seconds: float
    verify_seconds: float
    pace: float = (
        1.0  # seconds of a pass that is always the same, made shortly before: how fast the machine was
    )
