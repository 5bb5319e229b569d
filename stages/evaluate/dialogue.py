"""One prompt, answered turn by turn with the draft and without it, as rows of the round table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from data_specs.evaluation import DRAFT, PLAIN
from pipeline.chat import TemplateRefusal, render_prompt, split_reasoning
from pipeline.config import ConfigError
from pipeline.drafts.base import Draft
from pipeline.sampling import Sampler
from pipeline.target import Target
from stages.evaluate.benchmarks import Prompt
from stages.evaluate.decode import Decoded, decode

WARM_UP_TOKENS = 16


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

    def answer(self, prompt: Prompt) -> list[dict[str, Any]]:
        """Rows of every round of every turn; a turn that the target's context cannot hold ends the dialogue.

        Each turn's history holds the answers made with the draft, so that both ways answer the same prompt.
        """
        history: list[dict[str, Any]] = []
        rows: list[dict[str, Any]] = []
        for message in prompt.messages:
            history.append(message)
            if message["role"] != "user":
                continue
            ids = self.render(prompt, history)
            limit = min(self.max_new_tokens, self.room(ids))
            if limit < 1:
                break
            turn = sum(m["role"] == "user" for m in history) - 1
            drafted = self._decode(ids, limit, prompt, turn, DRAFT)
            rows += _rows(prompt, turn, DRAFT, drafted)
            if self.baseline:
                rows += _rows(prompt, turn, PLAIN, self._decode(ids, limit, prompt, turn, PLAIN))
            history.append(split_reasoning(self.tokenizer.decode(drafted.answer, skip_special_tokens=True)))
        return rows

    @property
    def thresholds(self) -> list[float]:
        """What the confidence of each draft of a block must reach."""
        return [self.threshold] * self.draft.max_drafts

    def render(self, prompt: Prompt, messages: list[dict[str, Any]]) -> list[int]:
        """Ids of ``messages`` as in training; ``ConfigError`` names the prompt that the template refuses."""
        try:
            return render_prompt(self.tokenizer, messages, self.thinking)
        except TemplateRefusal as error:
            raise ConfigError(f"benchmark {prompt.benchmark}, prompt {prompt.index}: {error}") from error

    def first_turn(self, prompt: Prompt) -> list[int]:
        """Ids of the messages up to the first user message."""
        first = next(i for i, m in enumerate(prompt.messages) if m["role"] == "user")
        return self.render(prompt, prompt.messages[: first + 1])

    def room(self, ids: list[int]) -> int:
        """New tokens that the target's context has room for after ``ids``."""
        return self.target.config.max_position_embeddings - len(ids)

    def warm_up(self, prompt: Prompt) -> float:
        """Decode a few tokens both ways before anything is timed; seconds a token without the draft."""
        ids = self.first_turn(prompt)[: self.target.config.max_position_embeddings - WARM_UP_TOKENS]
        self._decode(ids, WARM_UP_TOKENS, prompt, 0, DRAFT)
        seconds = [r.verify_seconds for r in self._decode(ids, WARM_UP_TOKENS, prompt, 0, PLAIN).rounds]
        return sum(seconds) / len(seconds)

    def _decode(self, ids: list[int], limit: int, prompt: Prompt, turn: int, mode: str) -> Decoded:
        draft = self.draft if mode == DRAFT else None
        generator = self._generator(prompt, turn, mode)
        return decode(self.target, draft, ids, self.sampler, limit, generator, self.thresholds)

    def _generator(self, prompt: Prompt, turn: int, mode: str) -> torch.Generator:
        """Seeded by what is answered, so that a resumed evaluation draws the same tokens."""
        text = f"{self.seed} {prompt.benchmark} {prompt.index} {prompt.key} {turn} {mode}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
        return torch.Generator(self.target.device).manual_seed(seed)


def _rows(prompt: Prompt, turn: int, mode: str, decoded: Decoded) -> Iterator[dict[str, Any]]:
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
