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
from pipeline.decoding.single import Decoded, decode
from pipeline.drafts.base import Draft
from pipeline.prompts.benchmarks import Prompt
from pipeline.prompts.chat import render_prompt
from pipeline.prompts.replies import reply_message
from pipeline.prompts.rows import Message
from pipeline.prompts.template import TemplateRefusal
from pipeline.target.model import Target

WARM_UP_TOKENS = 16
RoundRow = Mapping[str, object]  # of data_specs/evaluation.SCHEMA


@dataclass(frozen=True)
class Speaker:
    """Target, draft and settings that are the same for all prompts of an evaluation."""

    target: Target
    draft: Draft
    tokenizer: Any
    sampler: Sampler
    max_new_tokens: int
    threshold: float
    baseline: bool
    thinking: bool | None
    seed: int
    temperatures: tuple[float, ...] = ()  # if calibrated, the threshold applies to calibrated confidences
    batch: int = 1  # prompts at a time (dialogues.py)

    def answer(self, prompt: Prompt) -> list[RoundRow]:
        """Rows of every round of every turn. A turn that does not fit the target's context ends the dialogue.

        Each turn's history has the answers made with the draft, so that both modes answer the same prompt.
        """
        dialogue = Dialogue(self, prompt)
        while (turn := dialogue.ask()) is not None:
            dialogue.take(self._decode(turn, prompt, DRAFT), DRAFT)
            if self.baseline:
                dialogue.take(self._decode(turn, prompt, PLAIN), PLAIN)
        return dialogue.rows

    @property
    def thresholds(self) -> list[float]:
        """The raw confidence that each draft of a block must reach."""
        return raw_thresholds(self.threshold, self.temperatures or [1.0] * self.draft.max_drafts)

    def render(self, prompt: Prompt, messages: list[Message]) -> list[int]:
        """See the function ``render``."""
        return render(self.tokenizer, self.thinking, prompt, messages)

    def first_turn(self, prompt: Prompt) -> list[int]:
        """Ids of the messages up to the first user message."""
        first = next(i for i, m in enumerate(prompt.messages) if m["role"] == "user")
        return self.render(prompt, prompt.messages[: first + 1])

    def room(self, ids: list[int]) -> int:
        """How many new tokens the target's context can hold after ``ids``."""
        return int(self.target.config.max_position_embeddings) - len(ids)

    def warm_up(self, prompt: Prompt) -> float:
        """Decode a few tokens in both modes before anything is timed. Returns seconds per token without the draft."""
        room = self.target.config.max_position_embeddings - WARM_UP_TOKENS
        turn = Turn(0, self.first_turn(prompt)[:room], WARM_UP_TOKENS)
        self._decode(turn, prompt, DRAFT)
        seconds = [r.verify_seconds for r in self._decode(turn, prompt, PLAIN).rounds]
        return sum(seconds) / len(seconds)

    def generator(self, *what: object) -> torch.Generator:
        """A generator seeded by ``what`` is answered, so that a resumed evaluation draws the same tokens."""
        text = " ".join(str(part) for part in (self.seed, *what))
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
        return torch.Generator(self.target.device).manual_seed(seed)

    def _decode(self, turn: Turn, prompt: Prompt, mode: str) -> Decoded:
        draft = self.draft if mode == DRAFT else None
        generator = self.generator(prompt.benchmark, prompt.index, prompt.key, turn.number, mode)
        return decode(self.target, draft, turn.ids, self.sampler, turn.limit, generator, self.thresholds)


class Asking(Protocol):
    """Leads a dialogue: a ``Speaker``, or a client of a server. Its ``tokenizer`` is the target's."""

    @property
    def tokenizer(self) -> Any: ...

    @property
    def max_new_tokens(self) -> int: ...

    def render(self, prompt: Prompt, messages: list[Message]) -> list[int]:
        """Ids of ``messages`` of ``prompt``, including the generation prompt."""

    def room(self, ids: list[int]) -> int:
        """How many new tokens the context can hold after ``ids``."""


def render(tokenizer: Any, thinking: bool | None, prompt: Prompt, messages: list[Message]) -> list[int]:
    """The token ids of ``messages``, rendered as for training.

    Raises ``ConfigError`` naming a prompt that the template refuses.
    """
    try:
        return render_prompt(tokenizer, messages, thinking, prompt.tools)
    except TemplateRefusal as error:
        raise ConfigError(f"benchmark {prompt.benchmark}, prompt {prompt.index}: {error}") from error


@dataclass(frozen=True)
class Turn:
    """The next turn to answer: the ids of the dialogue so far, and the limit of new tokens."""

    number: int
    ids: list[int]
    limit: int


class Dialogue:
    """Leads one prompt through its turns and collects its rows of the round table."""

    def __init__(self, speaker: Asking, prompt: Prompt) -> None:
        self.speaker, self.prompt = speaker, prompt
        self.rows: list[RoundRow] = []
        self._history: list[Message] = []
        self._left = list(prompt.messages)
        self._turn = -1
        self._asked: list[int] = []  # ids of the turn that is being answered

    def ask(self) -> Turn | None:
        """The next turn; None if there is none left, or if it does not fit the target's context."""
        while self._left:
            self._history.append(self._left.pop(0))
            if self._history[-1]["role"] != "user":
                continue
            self._turn += 1
            self._asked = ids = self.speaker.render(self.prompt, self._history)
            limit = min(self.speaker.max_new_tokens, self.speaker.room(ids))
            if limit < 1:
                self._left.clear()
                break
            return Turn(self._turn, ids, limit)
        return None

    def take(self, decoded: Decoded, mode: str) -> None:
        """Record the answer to the turn; later turns continue from the answer made with the draft."""
        self.rows += _rows(self.prompt, self._turn, mode, decoded)
        if mode == DRAFT:
            self.follow(decoded.answer)

    def follow(self, answer: list[int]) -> None:
        """Continue later turns from ``answer``; an answer that was cut inside its reasoning ends the dialogue."""
        message = reply_message(self.speaker.tokenizer, self._asked, answer)
        if message is None:
            self._left.clear()
        else:
            self._history.append(message)


def _rows(prompt: Prompt, turn: int, mode: str, decoded: Decoded) -> Iterator[RoundRow]:
    """Rows of data_specs/evaluation.SCHEMA for one answer."""
    common = {
        "benchmark": prompt.benchmark, "prompt": prompt.index, "key": prompt.key, "turn": turn, "mode": mode,
    }  # fmt: skip
    for number, r in enumerate(decoded.rounds):
        yield common | {
            "round": number, "context": r.context, "drafted": r.drafted, "proposed": r.proposed,
            "accepted": r.accepted, "emitted": len(r.tokens), "tokens": r.tokens,
            "confidences": r.confidences, "draft_seconds": r.draft_seconds,
            "verify_seconds": r.verify_seconds,
            "finish": decoded.finish if number == len(decoded.rounds) - 1 else None,
        }  # fmt: skip
