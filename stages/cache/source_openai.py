"""Answers by OpenAI-compatible servers (vLLM, SGLang, ...): concurrent requests, bounded retries.

The ids that a server returns (vLLM: ``return_token_ids``) are used as they are. Where it returns text only,
the ids are made from it by the target's template, and the reply says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from pipeline.config import ConfigError, OpenAIConfig
from pipeline.http_client import (
    SHOWN,
    Caller,
    FailureError,
    RefusalError,
    ServerError,
    are_ids,
    body_of,
    check_url,
    pick_model,
)
from pipeline.prompts.chat import given_answer
from pipeline.prompts.rows import Message, Rejection
from stages.cache.source import AnswerReply, AnswerRequest, Refusal, Settings

PROMPT_REFUSED = {400, 413, 422}  # of one prompt (too long, a content filter); other 4xx are of the set-up
SEEDS = 2**31


class OpenAIEngine:
    """Chat completions of one model by one or several servers that all serve it."""

    def __init__(
        self,
        config: OpenAIConfig,
        settings: Settings,
        tokenizer: Any,
        thinking: bool | None,
        eos: Sequence[int],
    ) -> None:
        check_config(config)
        self.config, self.settings, self.tokenizer = config, settings, tokenizer
        self.thinking, self.eos = thinking, eos
        self.urls = [url.rstrip("/") for url in config.base_urls]
        self.caller = Caller(config, "answers.openai")
        self.has_refused = False
        self.model, self.context = asyncio.run(self._identify())

    def answer(
        self, requests: Sequence[AnswerRequest], seed: int, advance: Callable[[int], None]
    ) -> list[AnswerReply | Rejection]:
        """See ``Engine.answer``. Raises ``ServerError`` when a request fails for good.

        A prompt that the server refuses as such (``PROMPT_REFUSED``) is a ``Refusal`` among the replies.
        """
        return asyncio.run(self._answer_all(requests, seed, advance))

    async def _answer_all(
        self, requests: Sequence[AnswerRequest], seed: int, advance: Callable[[int], None]
    ) -> list[AnswerReply | Rejection]:
        gate = asyncio.Semaphore(self.config.concurrency)
        async with self.caller.client(self.config.concurrency) as client:

            async def one(number: int, request: AnswerRequest) -> AnswerReply | Rejection:
                async with gate:
                    reply = await self._ask(client, number, request, (seed + number) % SEEDS)
                advance(len(reply.answer_ids) if isinstance(reply, AnswerReply) else 0)
                return reply

            return await asyncio.gather(*(one(*numbered) for numbered in enumerate(requests)))

    async def _ask(
        self, client: httpx.AsyncClient, number: int, request: AnswerRequest, seed: int
    ) -> AnswerReply | Rejection:
        payload = self.payload(request, seed)

        async def attempt(url: str) -> AnswerReply | Rejection:
            try:
                body = body_of(await client.post(f"{url}/chat/completions", json=payload))
            except RefusalError as error:
                if error.status not in PROMPT_REFUSED:
                    raise
                return self._refused(f"{url}: {error}")
            return self._reply(request, body)

        turn = number % len(self.urls)
        return await self.caller.retried(self.urls[turn:] + self.urls[:turn], attempt)

    def _refused(self, text: str) -> Refusal:
        """The refusal of one prompt; the first one is shown as it comes."""
        said = self.caller.clean(text)
        if not self.has_refused:
            self.has_refused = True
            self.caller.say_once(f"a prompt was refused, going on without it: {said}")
        return Refusal("refused_by_server", said)

    def payload(self, request: AnswerRequest, seed: int) -> dict[str, Any]:
        """The body of a request: every setting under its own name, none that is off (pitfall 14)."""
        sampling = self.settings.active()
        limit = min(int(sampling.pop("max_new_tokens")), request.limit)
        body: dict[str, Any] = {"model": self.model, "messages": request.messages, "max_tokens": limit}
        if self.thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self.thinking}
        return body | sampling | {"seed": seed, "return_token_ids": True}

    def _reply(self, request: AnswerRequest, body: dict[str, Any]) -> AnswerReply | Rejection:
        """The reply in a response's ``body``; ``FailureError`` when a field is not what it should be."""
        try:
            choice = body["choices"][0]
            said, reason = choice["message"], str(choice["finish_reason"])
            message = _message(said)
            ids, prompt_ids = choice.get("token_ids"), body.get("prompt_token_ids")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise FailureError(f"a body without {error!r}: {str(body)[:SHOWN]}") from None
        if ids is None:
            return self._from_text(request, message, reason)
        if not are_ids(ids) or not (prompt_ids is None or are_ids(prompt_ids)):
            raise FailureError(f"token_ids that are no ids: {str(ids)[:SHOWN]}")
        if not ids:
            return Rejection("empty_answer")
        return AnswerReply(prompt_ids or request.prompt_ids, ids, reason, message)

    def _from_text(self, request: AnswerRequest, message: Message, reason: str) -> AnswerReply | Rejection:
        """Ids from the text, ended by the end of turn exactly when the target ended there."""
        made = given_answer(self.tokenizer, [*request.messages, message], self.thinking)
        if isinstance(made, Rejection):
            return made
        prompt_ids, ids = made
        ended = bool(ids) and ids[-1] in self.eos
        if reason == "stop" and not ended:
            ids = [*ids, self.tokenizer.eos_token_id]
        elif reason != "stop" and ended:
            ids = ids[:-1]
        return (
            AnswerReply(prompt_ids, ids, reason, message, retokenized=True)
            if ids
            else Rejection("empty_answer")
        )

    async def _identify(self) -> tuple[str, int | None]:
        """The model's name (the first of each server's list if none is configured) and its context length."""
        found: list[tuple[str, int | None]] = []
        async with self.caller.client(self.config.concurrency) as client:
            for url in self.urls:
                found.append(await self.caller.retried([url], lambda url: self._model(client, url)))
        names = {name for name, _ in found}
        if len(names) > 1:
            raise ServerError(f"answers.openai.base_urls serve different models: {sorted(names)}")
        return found[0][0], min((context for _, context in found if context is not None), default=None)

    async def _model(self, client: httpx.AsyncClient, url: str) -> tuple[str, int | None]:
        name, said = pick_model(body_of(await client.get(f"{url}/models")), self.config.model, url)
        return name, said.get("max_model_len")


def check_config(config: OpenAIConfig) -> None:
    """Raise ``ConfigError`` naming the key that cannot be used."""
    if not config.base_urls:
        raise ConfigError(
            "answers.openai.base_urls: expected at least one URL such as http://host:8000/v1, got none"
        )
    for url in config.base_urls:
        check_url(url, "answers.openai.base_urls", "answers.openai.api_key_env")
    if config.concurrency < 1:
        raise ConfigError(f"answers.openai.concurrency={config.concurrency}: expected at least 1")


def _message(said: dict[str, Any]) -> Message:
    """The assistant's message of a response, reasoning kept (pitfall 5; servers differ in its name)."""
    message: Message = {"role": "assistant", "content": said.get("content") or ""}
    reasoning = said.get("reasoning_content") or said.get("reasoning")
    if not isinstance(message["content"], str) or not isinstance(reasoning, str | None):
        raise TypeError("text content")
    return message | ({"reasoning_content": reasoning} if reasoning else {})
