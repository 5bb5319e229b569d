"""Answers by OpenAI-compatible servers (vLLM, SGLang, ...): concurrent requests, bounded retries.

The ids that a server returns (vLLM: ``return_token_ids``) are used as they are. Where it returns text only,
the ids are made from it by the target's template, and the reply says so.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from data_specs.errors import UserError
from pipeline.chat import given_answer
from pipeline.config import ConfigError, OpenAIConfig
from pipeline.console import say
from pipeline.rows import Message, Rejection
from stages.cache.engine import Refusal, Reply, Request, Settings

RETRIED = {408, 429}  # and 5xx: the server may do better later
PROMPT_REFUSED = {400, 413, 422}  # of one prompt (too long, a content filter); other 4xx are of the set-up
LONGEST_PAUSE = 60.0  # seconds
SHOWN = 500  # characters of a server's message in an error
SEEDS = 2**31


class ServerError(UserError):
    """A server that cannot be used; the message names it and says what came back."""


class _FailureError(Exception):
    """One attempt failed in a way that another may not."""


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
        self.key = _key(config)
        self.said: set[str] = set()
        self.has_refused = False
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs a line a request otherwise
        self.model, self.context = asyncio.run(self._identify())

    def answer(
        self, requests: Sequence[Request], seed: int, advance: Callable[[int], None]
    ) -> list[Reply | Rejection]:
        """See ``Engine.answer``. Raises ``ServerError`` when a request fails for good.

        A prompt that the server refuses as such (``PROMPT_REFUSED``) is a ``Refusal`` among the replies.
        """
        return asyncio.run(self._answer_all(requests, seed, advance))

    async def _answer_all(
        self, requests: Sequence[Request], seed: int, advance: Callable[[int], None]
    ) -> list[Reply | Rejection]:
        gate = asyncio.Semaphore(self.config.concurrency)
        async with self._client() as client:

            async def one(number: int, request: Request) -> Reply | Rejection:
                async with gate:
                    reply = await self._ask(client, number, request, (seed + number) % SEEDS)
                advance(len(reply.answer_ids) if isinstance(reply, Reply) else 0)
                return reply

            return await asyncio.gather(*(one(*numbered) for numbered in enumerate(requests)))

    async def _ask(
        self, client: httpx.AsyncClient, number: int, request: Request, seed: int
    ) -> Reply | Rejection:
        payload = self.payload(request, seed)

        async def attempt(url: str) -> Reply | Rejection:
            try:
                body = _body(await client.post(f"{url}/chat/completions", json=payload))
            except _RefusalError as error:
                if error.status not in PROMPT_REFUSED:
                    raise
                return self._refused(f"{url}: {error}")
            return self._reply(request, body)

        turn = number % len(self.urls)
        return await self._retried(self.urls[turn:] + self.urls[:turn], attempt)

    def _refused(self, text: str) -> Refusal:
        """The refusal of one prompt; the first one is shown as it comes."""
        said = self._clean(text)
        if not self.has_refused:
            self.has_refused = True
            self._say_once(f"a prompt was refused, going on without it: {said}")
        return Refusal("refused_by_server", said)

    def payload(self, request: Request, seed: int) -> dict[str, Any]:
        """The body of a request: every setting under its own name, none that is off (pitfall 14)."""
        sampling = self.settings.active()
        limit = min(int(sampling.pop("max_new_tokens")), request.limit)
        body: dict[str, Any] = {"model": self.model, "messages": request.messages, "max_tokens": limit}
        if self.thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self.thinking}
        return body | sampling | {"seed": seed, "return_token_ids": True}

    def _reply(self, request: Request, body: dict[str, Any]) -> Reply | Rejection:
        """The reply in a response's ``body``; ``_FailureError`` when a field is not what it should be."""
        try:
            choice = body["choices"][0]
            said, reason = choice["message"], str(choice["finish_reason"])
            message = _message(said)
            ids, prompt_ids = choice.get("token_ids"), body.get("prompt_token_ids")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise _FailureError(f"a body without {error!r}: {str(body)[:SHOWN]}") from None
        if ids is None:
            return self._from_text(request, message, reason)
        if not _are_ids(ids) or not (prompt_ids is None or _are_ids(prompt_ids)):
            raise _FailureError(f"token_ids that are no ids: {str(ids)[:SHOWN]}")
        if not ids:
            return Rejection("empty_answer")
        return Reply(prompt_ids or request.prompt_ids, ids, reason, message)

    def _from_text(self, request: Request, message: Message, reason: str) -> Reply | Rejection:
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
        return Reply(prompt_ids, ids, reason, message, retokenized=True) if ids else Rejection("empty_answer")

    async def _identify(self) -> tuple[str, int | None]:
        """The model's name (the first of each server's list if none is configured) and its context length."""
        found: list[tuple[str, int | None]] = []
        async with self._client() as client:
            for url in self.urls:
                found.append(await self._retried([url], lambda url: self._model(client, url)))
        names = {name for name, _ in found}
        if len(names) > 1:
            raise ServerError(f"answers.openai.base_urls serve different models: {sorted(names)}")
        return found[0][0], min((context for _, context in found if context is not None), default=None)

    async def _model(self, client: httpx.AsyncClient, url: str) -> tuple[str, int | None]:
        body = _body(await client.get(f"{url}/models"))
        try:
            models = {str(model["id"]): model.get("max_model_len") for model in body["data"]}
        except (KeyError, TypeError, AttributeError) as error:
            raise _FailureError(f"a list of models without {error!r}: {str(body)[:SHOWN]}") from None
        name = self.config.model or next(iter(models), None)
        if name is None or name not in models:
            raise ServerError(f"{url}: expected to serve {name or 'a model'}, got {sorted(models)}")
        return name, models[name]

    def _client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=self.config.concurrency)
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return httpx.AsyncClient(timeout=self.config.timeout, limits=limits, headers=headers)

    async def _retried(self, urls: Sequence[str], attempt: Callable[[str], Any]) -> Any:
        """``attempt(url)``, at the next server when it fails, at most ``retries`` more; pauses double."""
        failure = ""
        for number in range(self.config.retries + 1):
            url = urls[number % len(urls)]
            try:
                return await attempt(url)
            except (_FailureError, httpx.TransportError, httpx.DecodingError) as error:
                failure = self._clean(f"{url}: {error or type(error).__name__}")
            except _RefusalError as error:
                raise ServerError(self._clean(f"{url}: {error}")) from None
            if number < self.config.retries:
                pause = min(LONGEST_PAUSE, self.config.backoff * 2**number)
                self._say_once(f"{failure}; asking again in {pause:g} s")
                await asyncio.sleep(pause)
        raise ServerError(f"{failure} (after {self.config.retries + 1} attempts)")

    def _say_once(self, text: str) -> None:
        if text not in self.said:
            self.said.add(text)
            say(text.replace("[", r"\["))

    def _clean(self, text: str) -> str:
        """``text`` without the key, which a server may quote."""
        return text.replace(self.key, "***") if self.key else text


class _RefusalError(Exception):
    """The server understood and said no (``status``); asking again would not help."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"status {status}: {text}")
        self.status = status


def check_config(config: OpenAIConfig) -> None:
    """Raise ``ConfigError`` naming the key that cannot be used."""
    if not config.base_urls:
        raise ConfigError(
            "answers.openai.base_urls: expected at least one URL such as http://host:8000/v1, got none"
        )
    for url in config.base_urls:
        parsed = httpx.URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ConfigError(f"answers.openai.base_urls: expected http(s)://host/..., got {url!r}")
        if parsed.userinfo:
            raise ConfigError(
                "answers.openai.base_urls: no user or password in a URL; see answers.openai.api_key_env"
            )
    for name, least in (("concurrency", 1), ("retries", 0), ("backoff", 0), ("timeout", 0)):
        if getattr(config, name) < least:
            raise ConfigError(f"answers.openai.{name}={getattr(config, name)}: expected at least {least}")


def _key(config: OpenAIConfig) -> str | None:
    if config.api_key_env is None:
        return None
    if not os.environ.get(config.api_key_env):
        raise ConfigError(
            f"answers.openai.api_key_env: the environment variable {config.api_key_env} is not set"
        )
    return os.environ[config.api_key_env]


def _body(response: httpx.Response) -> dict[str, Any]:
    """The JSON object of a response; raises ``_FailureError`` or ``_RefusalError`` for anything else."""
    status = response.status_code
    if status in RETRIED or status >= 500:
        raise _FailureError(f"status {status}: {response.text[:SHOWN]}")
    if status >= 300:
        raise _RefusalError(status, response.text[:SHOWN])
    try:
        body = response.json()
    except ValueError:
        raise _FailureError(f"expected JSON, got {response.text[:SHOWN]!r}") from None
    if not isinstance(body, dict):
        raise _FailureError(f"expected a JSON object, got {type(body).__name__}")
    return body


def _message(said: dict[str, Any]) -> Message:
    """The assistant's message of a response, reasoning kept (pitfall 5; servers differ in its name)."""
    message: Message = {"role": "assistant", "content": said.get("content") or ""}
    reasoning = said.get("reasoning_content") or said.get("reasoning")
    if not isinstance(message["content"], str) or not isinstance(reasoning, str | None):
        raise TypeError("text content")
    return message | ({"reasoning_content": reasoning} if reasoning else {})


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
