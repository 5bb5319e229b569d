"""The group ``answers``, and how a server is asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from omegaconf import MISSING

from pipeline.config.rules import (
    Count,
    MinP,
    Natural,
    Positive,
    Temperature,
    TopP,
    Weight,
    at_least,
    between,
    one_of,
)

Penalty = Annotated[float, between(-2, 2)]  # the range of OpenAI's API


@dataclass
class AskingConfig:
    """How a server is asked."""

    model: str | None = None  # None: the first model that the server lists
    retries: Natural = 6
    backoff: Weight = 1.0  # seconds before the first retry; doubles
    timeout: Positive = 600.0  # seconds
    api_key_env: str | None = None  # name of the environment variable that holds the key


@dataclass
class OpenAIConfig(AskingConfig):
    """An OpenAI-compatible server (or several) that answers as the target."""

    base_urls: list[str] = field(default_factory=list)
    concurrency: Count = 64


@dataclass
class ClientConfig(AskingConfig):
    """How stage=evaluate asks ``server`` and ``plain_server``."""

    note: str | None = None  # what is special about the server; another note makes another evaluation


@dataclass
class AnswersConfig:
    """How the target answers the prompts. A sampling field of None follows the target's generation config."""

    # hf: the target in this process; openai: a server; given: the answers in the data
    source: Annotated[str, one_of("hf", "openai", "given")] = MISSING
    max_new_tokens: Count = 512
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, at_least(-1)] | None = None  # 0 and -1: off, whatever the generation config says
    min_p: MinP | None = None
    repetition_penalty: Positive | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    batch_size: Count = 32  # hf: prompts answered together
    chunk_prompts: Count = 128  # prompts of a unit of work, which ranks share and a rerun skips
    openai: OpenAIConfig = field(default_factory=OpenAIConfig)

    def contradictions(self) -> Iterator[str]:
        """Yield a message for each contradiction in ``answers``."""
        if self.source == "openai" and not self.openai.base_urls:
            yield "answers.openai.base_urls: expected at least one URL such as http://127.0.0.1:8000/v1, got none"
        for name in ("presence_penalty", "frequency_penalty"):
            if self.source == "hf" and getattr(self, name) is not None:
                yield f"answers.{name}: expected null with answers=hf, because only answers=openai has this penalty"
