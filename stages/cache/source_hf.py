"""Answers in this process with the batched engine, or in padded batches if that engine cannot run the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from pipeline.config import ConfigError
from pipeline.decoding.batched import Engine
from pipeline.decoding.sampling import Sampler
from pipeline.decoding.steps import Request
from pipeline.prompts.replies import reply_message
from pipeline.prompts.rows import Rejection
from pipeline.target.model import Target
from pipeline.target.ragged import supports
from stages.cache.padded import answer_padded
from stages.cache.source import SHAPING, AnswerReply, AnswerRequest, Settings

PREFILL_TOKENS = 2048  # prompt tokens per step; large, because latency does not matter here


class HfSource:
    """Answers with the target in this process."""

    def __init__(self, target: Target, tokenizer: Any, settings: Settings, batch_size: int) -> None:
        check_settings(settings)
        self.target, self.tokenizer, self.settings = target, tokenizer, settings
        # A target that rewinds would take padding on the left into its state, so it gets batches of one.
        self.batch_size = 1 if target.rewinds else batch_size
        self.context: int | None = getattr(target.config, "max_position_embeddings", None)

    def answer(
        self, requests: Sequence[AnswerRequest], seed: int, advance: Callable[[int], None]
    ) -> list[AnswerReply | Rejection]:
        """See ``AnswerSource.answer``."""
        generator = torch.Generator(self.target.device).manual_seed(seed)
        if not requests:
            return []
        if supports(self.target):
            answers = self._by_engine(requests, generator, advance)
        else:
            prompts, limits = [r.prompt_ids for r in requests], [r.limit for r in requests]
            answers = answer_padded(
                self.target, prompts, limits, self.settings, self.batch_size, generator, advance
            )
        return [self._reply(request, ids) for request, ids in zip(requests, answers, strict=True)]

    def _by_engine(
        self, requests: Sequence[AnswerRequest], generator: torch.Generator, advance: Callable[[int], None]
    ) -> list[list[int]]:
        """Answer by continuous batching; the longest requests start first, so that few run alone at the end."""
        order = sorted(range(len(requests)), key=lambda n: (-requests[n].limit, -len(requests[n].prompt_ids)))
        queue = [Request(n, tuple(requests[n].prompt_ids), requests[n].limit) for n in order]
        sampler = Sampler(**{name: value for name, value in asdict(self.settings).items() if name in SHAPING})
        engine = Engine(
            self.target,
            None,
            sampler,
            None,
            slots=min(self.batch_size, len(queue)),
            capacity=max(len(request.prompt) + request.max_new_tokens for request in queue),
            prefill_tokens=PREFILL_TOKENS,
            generator=generator,
            repetition_penalty=self.settings.repetition_penalty,
        )
        answers: dict[int, list[int]] = {}
        for answered in engine.serve(queue):
            advance(len(answered.answer))
            answers[answered.request.number] = answered.answer
        return [answers[number] for number in range(len(requests))]

    def _reply(self, request: AnswerRequest, ids: list[int]) -> AnswerReply:
        ended = ids[-1] in self.target.eos
        said = ids[:-1] if ended else ids
        message = reply_message(self.tokenizer, request.prompt_ids, said)
        text = {"role": "assistant", "content": self.tokenizer.decode(said)} if message is None else message
        finish = "stop" if ended else "length"
        return AnswerReply(request.prompt_ids, ids, finish, text, is_cut_in_reasoning=message is None)


def check_settings(settings: Settings) -> None:
    """Raise ``ConfigError`` for a setting that transformers cannot apply."""
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(settings, name) is not None:
            raise ConfigError(
                f"answers.{name}: transformers has no such penalty; remove it or set answers=openai"
            )
