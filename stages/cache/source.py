"""Requests to and replies from the engine that answers, and the sampling settings in effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from pipeline.config import AnswersConfig, ConfigError
from pipeline.config.rules import MinP, Positive, Temperature, TopK, TopP, check_fields
from pipeline.prompts.rows import Message, Rejection, Tool

SHAPING = ("temperature", "top_p", "top_k", "min_p")  # these have no effect if the target decodes greedily
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
OFF = {"top_p": (1, 1.0), "top_k": (0, -1), "min_p": (0, 0.0), "repetition_penalty": (1, 1.0),
       "presence_penalty": (0, 0.0), "frequency_penalty": (0, 0.0)}  # fmt: skip
LEFT_OUT = (
    "typical_p", "epsilon_cutoff", "eta_cutoff", "no_repeat_ngram_size", "suppress_tokens", "bad_words_ids",
    "min_new_tokens", "exponential_decay_length_penalty", "sequence_bias", "guidance_scale",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """The settings an engine applies. Temperature 0 is greedy decoding; None turns a setting off."""

    max_new_tokens: int
    temperature: Temperature
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: Positive | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    def active(self) -> dict[str, float | int]:
        """The settings that are not off, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class AnswerRequest:
    """One turn to answer: the messages so far, their ids, the most tokens of the answer, and the tools."""

    messages: list[Message]
    prompt_ids: list[int]
    limit: int
    tools: Sequence[Tool] = ()


@dataclass(frozen=True)
class AnswerReply:
    """The target's answer: ids of prompt and answer, why it ended, and the answer as a message.

    ``retokenized`` says that the engine returned only text and the ids were made from it. ``is_cut_in_reasoning``
    says that the reasoning was cut, so there is no answer that a later turn could follow.
    """

    prompt_ids: list[int]
    answer_ids: list[int]
    finish_reason: str
    message: Message
    retokenized: bool = False
    is_cut_in_reasoning: bool = False


@dataclass(frozen=True)
class Refusal(Rejection):
    """A prompt that the server refuses to answer; ``detail`` is the server's own reason."""


class AnswerSource(Protocol):
    """An engine that runs the target and answers."""

    context: int | None  # most tokens of prompt and answer together; None if unknown

    def answer(
        self, requests: Sequence[AnswerRequest], seed: int, advance: Callable[[int], None]
    ) -> list[AnswerReply | Rejection]:
        """One reply per request, in order; equal requests and ``seed`` give equal replies if the engine supports it.

        Calls ``advance`` with the number of tokens of each answer when it is complete.
        """
        ...


def effective_settings(answers: AnswersConfig, generation: dict[str, Any]) -> Settings:
    """``answers`` with each None replaced by the value in the target's ``generation_config.json``, as engines read it.

    A target whose generation config does not sample decodes greedily. Raises ``ConfigError`` naming the key if a
    value is out of its range or greedy decoding would ignore it.
    """
    sampled = bool(generation.get("do_sample"))
    merged = {name: _first(getattr(answers, name), generation.get(name)) for name in (*SHAPING, *PENALTIES)}
    if answers.temperature is None:
        merged["temperature"] = _first(generation.get("temperature"), 1.0) if sampled else 0.0
    if merged["temperature"] == 0:
        for name in SHAPING[1:]:
            if getattr(answers, name) is not None:
                raise ConfigError(
                    f"answers.{name} has no effect at temperature 0: set answers.temperature as well"
                )
            merged[name] = None
    merged |= {name: None for name, off in OFF.items() if merged[name] in off}
    settings = Settings(answers.max_new_tokens, **merged)
    check_fields(settings, "answers.")
    return settings


def left_out(generation: dict[str, Any]) -> list[str]:
    """Settings in the target's generation config that none of draftline's engines applies."""
    neutral: tuple[Any, ...] = (None, 0, 0.0, 1, 1.0, [], {})
    return [name for name in LEFT_OUT if generation.get(name) not in neutral]


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
