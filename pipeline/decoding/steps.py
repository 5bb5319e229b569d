"""What the engine is asked to do and what it did, whether real or simulated. All figures under load come from these.

Times are seconds since the run began, by the wall clock or the clock of the simulation.
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
    """The times of one request in the engine. The first of its ``tokens`` was emitted at ``first_token``."""

    number: int
    tokens: int
    arrival: float
    admitted: float  # when it was given a slot
    first_token: float
    finished: float

    @property
    def speed(self) -> float | None:
        """Tokens a second after the first token, as the user sees them; None for answers of one token."""
        return (self.tokens - 1) / (self.finished - self.first_token) if self.tokens > 1 else None


@dataclass(frozen=True)
class Step:
    """One step of the engine: it reads prompts, then makes one draft pass, a schedule and one verification pass.

    ``verified`` is B, the tokens of the verification pass: one anchor for each request, and the scheduled drafts. In a
    step that only reads prompts, ``requests`` is 0.
    """

    began: float
    requests: int = 0  # that took part in the draft and verification pass
    context: int = 0  # sum of their positions before the anchor
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    emitted: int = 0  # tokens that became output, including the first token of each finished prefill
    prefilled: int = 0  # prompt tokens
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    schedule_seconds: float = 0.0
    verify_seconds: float = 0.0
    pace: float = 1.0  # seconds of a fixed reference pass just before: how fast the machine was
