"""One prompt, answered turn by turn with the draft and without it, as rows of the round table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from data_specs.evaluation import DRAFT, PLAIN
from pipeline.confidence.temperatures import raw_thresholds
from pipeline.config import ConfigError
from pipeline.decoding.sampling import Sampler
from pipeline.decoding.single import Decoded, Round, decode
from pipeline.drafts.base import Draft
from pipeline.prompts.benchmarks import Prompt
from pipeline.prompts.chat import render_prompt
from pipeline.prompts.replies import reply_message
from pipeline.prompts.rows import Message
from pipeline.prompts.template import TemplateRefusal
from pipeline.target.model import Target

WARM_UP_TOKENS = 16
RoundRow = Mapping[str, object]  # of data_specs/evaluation.SCHEMA


class Answered(Protocol):
    """What decoding one prompt brought, alone or with others."""

    @property
    def answer(self) -> list[int]:
        """Its tokens."""

    @property
    def finish(self) -> str:
        """``stop`` or ``length``."""

    @property
    def rounds(self) -> list[Round]:
        """The rounds that made it, the prefill first."""


@dataclass(frozen=True)
class Speaker:
    """Target, draft, and how answers are made; the same for all prompts of an evaluation."""

    target: Target
    draft: Draft
    tokenizer: Any
    sampler: Sampler
    max_new_tokens: int
    threshold: float
    baseline: bool
    thinking: bool | None
    seed: int
    temperatures: tuple[
        float, ...
    ] = ()  # of a calibration: the threshold is compared with calibrated confidences
    batch: int = 1  # prompts at a time (batch.py)

    def answer(self, prompt: Prompt) -> list[RoundRow]:
        """Rows of every round of every turn; a turn that the target's context cannot hold ends the dialogue.

        Each turn's history holds the answers made with the draft, so that both ways answer the same prompt.
        """
        dialogue = Dialogue(self, prompt)
        while (turn := dialogue.ask()) is not None:
            dialogue.take(self._decode(turn, prompt, DRAFT), DRAFT)
            if self.baseline:
                dialogue.take(self._decode(turn, prompt, PLAIN), PLAIN)
        return dialogue.rows

    @property
    def thresholds(self) -> list[float]:
        """What the draft's own confidence of each draft of a block must reach."""
        return raw_thresholds(self.threshold, self.temperatures or [1.0] * self.draft.max_drafts)

    def render(self, prompt: Prompt, messages: list[Message]) -> list[int]:
        """Ids of ``messages`` as in training; ``ConfigError`` names the prompt that the template refuses."""
        return render(self.tokenizer, self.thinking, prompt, messages)

    def first_turn(self, prompt: Prompt) -> list[int]:
        """Ids of the messages up to the first user message."""
        first = next(i for i, m in enumerate(prompt.messages) if m["role"] == "user")
        return self.render(prompt, prompt.messages[: first + 1])

    def room(self, ids: list[int]) -> int:
        """New tokens that the target's context has room for after ``ids``."""
        return int(self.target.config.max_position_embeddings) - len(ids)

    def warm_up(self, prompt: Prompt) -> float:
        """Decode a few tokens both ways before anything is timed; seconds a token without the draft."""
        room = self.target.config.max_position_embeddings - WARM_UP_TOKENS
        turn = Turn(0, self.first_turn(prompt)[:room], WARM_UP_TOKENS)
        self._decode(turn, prompt, DRAFT)
        seconds = [r.verify_seconds for r in self._decode(turn, prompt, PLAIN).rounds]
        return sum(seconds) / len(seconds)

    def generator(self, *what: object) -> torch.Generator:
        """Seeded by what is answered, so that a resumed evaluation draws the same tokens."""
        text = " ".join(str(part) for part in (self.seed, *what))
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
        return torch.Generator(self.target.device).manual_seed(seed)

    def _decode(self, turn: Turn, prompt: Prompt, mode: str) -> Decoded:
        draft = self.draft if mode == DRAFT else None
        generator = self.generator(prompt.benchmark, prompt.index, prompt.key, turn.number, mode)
        return decode(self.target, draft, turn.ids, self.sampler, turn.limit, generator, self.thresholds)


class Asking(Protocol):
    """Who leads a dialogue: ``Speaker``, or one that asks a server."""

    @property
    def tokenizer(self) -> Any:
        """The target's."""

    @property
    def max_new_tokens(self) -> int:
        """Of an answer."""

    def render(self, prompt: Prompt, messages: list[Message]) -> list[int]:
        """Ids of ``messages`` of ``prompt``, the generation prompt included."""

    def room(self, ids: list[int]) -> int:
        """New tokens that the context has room for after ``ids``."""


def render(tokenizer: Any, thinking: bool | None, prompt: Prompt, messages: list[Message]) -> list[int]:
    """Ids of ``messages`` as in training; ``ConfigError`` names the prompt that the template refuses."""
    try:
        return render_prompt(tokenizer, messages, thinking, prompt.tools)
    except TemplateRefusal as error:
        raise ConfigError(f"benchmark {prompt.benchmark}, prompt {prompt.index}: {error}") from error


@dataclass(frozen=True)
class Turn:
    """What is to be answered next: the ids of the dialogue so far, with at most ``limit`` new tokens."""

    number: int
    ids: list[int]
    limit: int


class Dialogue:
    """One prompt's way through its turns, and the rows of the round table that came of it."""

    def __init__(self, speaker: Asking, prompt: Prompt) -> None:
        self.speaker, self.prompt = speaker, prompt
        self.rows: list[RoundRow] = []
        self._history: list[Message] = []
        self._left = list(prompt.messages)
        self._turn = -1
        self._asked: list[int] = []  # ids of the turn that is being answered

    def ask(self) -> Turn | None:
        """The next turn; None where there is no other, or the target's context cannot hold it."""
        while self._left:
            self._history.append(self._left.pop(0))
            if self._history[-1]["role"] != "user":
                continue
            self._turn += 1
            ids = self.speaker.render(self.prompt, self._history)
            self._asked = ids
            limit = min(self.speaker.max_new_tokens, self.speaker.room(ids))
            if limit < 1:
                self._left.clear()
                break
            return Turn(self._turn, ids, limit)
        return None

    def take(self, decoded: Answered, mode: str) -> None:
        """Take in the answer to the turn; later turns follow the one that was made with the draft."""
        self.rows += _rows(self.prompt, self._turn, mode, decoded)
        if mode == DRAFT:
            self.follow(decoded.answer)

    def follow(self, answer: list[int]) -> None:
        """Later turns follow ``answer``; there are none where it was cut inside its reasoning."""
        message = reply_message(self.speaker.tokenizer, self._asked, answer)
        if message is None:
            self._left.clear()
        else:
            self._history.append(message)


def _rows(prompt: Prompt, turn: int, mode: str, decoded: Answered) -> Iterator[RoundRow]:
    """Rows of data_specs/evaluation.SCHEMA for one answer."""
    common = {
        "benchmark": prompt.benchmark,
        "prompt": prompt.index,
        "key": prompt.key,
        "turn": turn,
        "mode": mode,
    }
    for number, r in enumerate(decoded.rounds):
        yield common | {
            "round": number, "context": r.context, "drafted": r.drafted, "proposed": r.proposed,
            "accepted": r.accepted, "emitted": len(r.tokens), "tokens": r.tokens,
            "confidences": r.confidences, "draft_seconds": r.draft_seconds,
            "verify_seconds": r.verify_seconds,
            "finish": decoded.finish if number == len(decoded.rounds) - 1 else None,
        }  # fmt: skip
