"""Gets answers from OpenAI-compatible servers (vLLM, SGLang, ...) by concurrent requests with bounded retries.

If a server returns token ids (vLLM does with ``return_token_ids``), they are used unchanged. If it returns only text,
the target's tokenizer and template make the ids, and the reply says so.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from pipeline.config import OpenAIConfig
from pipeline.http_client import (
    SHOWN,
    TOO_MANY,
    Caller,
    ExhaustedError,
    FailureError,
    RefusalError,
    ServerError,
    are_ids,
    body_of,
    check_url,
    pick_model,
)
from pipeline.prompts.chat import given_answer
from pipeline.prompts.rows import Message, Rejection, calls_of
from pipeline.prompts.template import end_of_turn, options
from stages.cache.source import AnswerReply, AnswerRequest, Refusal, Settings

# Neutral values of the settings. A setting that is off is sent with its neutral value, because vLLM would otherwise use
# the model's default. If a strict server refuses the name, the request is repeated without it.
NEUTRAL = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
           "frequency_penalty": 0.0}  # fmt: skip
RETURN_IDS = "return_token_ids"
PROMPT_REFUSED = {
    400,
    413,
    422,
}  # one prompt is at fault (length, content filter); other 4xx mean a wrong set-up
ENDED = ("stop", "tool_calls")  # finish reasons of answers that the target ended itself
SEEDS = 2**31


class OpenAISource:
    """Requests chat completions of one model from one or several servers."""

    def __init__(
        self,
        config: OpenAIConfig,
        settings: Settings,
        tokenizer: Any,
        thinking: bool | None,
        eos: Sequence[int],
        vocab_size: int | None = None,
    ) -> None:
        check_config(config)
        self.config, self.settings, self.tokenizer = config, settings, tokenizer
        self.thinking, self.eos, self.vocab_size = thinking, eos, vocab_size
        self.unknown: set[str] = set()  # request fields that a server does not know
        self.urls = [url.rstrip("/") for url in config.base_urls]
        self.caller = Caller(config, "answers.openai")
        self.has_refused = False
        self.model, self.context = asyncio.run(self._identify())

    def answer(
        self, requests: Sequence[AnswerRequest], seed: int, advance: Callable[[int], None]
    ) -> list[AnswerReply | Rejection]:
        """See ``AnswerSource.answer``. Raises ``ServerError`` if none of ``requests`` succeeds.

        The reply is a ``Refusal`` if the server refuses the prompt itself (``PROMPT_REFUSED``), or if the request keeps
        failing while others succeed.
        """
        return asyncio.run(self._answer_all(requests, seed, advance))

    async def _answer_all(
        self, requests: Sequence[AnswerRequest], seed: int, advance: Callable[[int], None]
    ) -> list[AnswerReply | Rejection]:
        gate = Gate(self.config.concurrency)
        failed: list[ExhaustedError] = []
        async with self.caller.client(self.config.concurrency) as client:

            async def one(number: int, request: AnswerRequest) -> AnswerReply | Rejection:
                async with gate:
                    try:
                        reply = await self._ask(client, gate, number, request, (seed + number) % SEEDS)
                    except ExhaustedError as error:
                        failed.append(error)
                        reply = Refusal("server_failed", str(error))
                advance(len(reply.answer_ids) if isinstance(reply, AnswerReply) else 0)
                return reply

            replies = await asyncio.gather(*(one(*numbered) for numbered in enumerate(requests)))
        if failed and len(failed) == len(requests):
            raise failed[0]
        return list(replies)

    async def _ask(
        self, client: httpx.AsyncClient, gate: Gate, number: int, request: AnswerRequest, seed: int
    ) -> AnswerReply | Rejection:
        async def attempt(url: str) -> AnswerReply | Rejection:
            payload = self.payload(request, seed)
            try:
                body = await self.caller.post(client, f"{url}/chat/completions", payload)
            except FailureError as error:
                if error.status == TOO_MANY:
                    gate.narrow()
                raise
            except RefusalError as error:
                if self._learns(str(error), payload):
                    return await attempt(url)
                if error.status not in PROMPT_REFUSED:
                    raise
                return self._refused(f"{url}: {error}")
            gate.widen()
            return self._reply(url, request, body)

        turn = number % len(self.urls)
        reply: AnswerReply | Rejection = await self.caller.retried(
            self.urls[turn:] + self.urls[:turn], attempt
        )
        return reply

    def _learns(self, refusal: str, payload: dict[str, Any]) -> bool:
        """Whether a server refused a field that can be left out; later requests omit this field."""
        optional = {name for name in (RETURN_IDS, *NEUTRAL) if name in payload and name in refusal}
        optional = {name for name in optional if name == RETURN_IDS or payload[name] == NEUTRAL[name]}
        if optional:
            self.caller.say_once(
                f"a server does not know {', '.join(sorted(optional))}: asking again without it"
            )
            self.unknown |= optional
        return bool(optional)

    def _refused(self, text: str) -> Refusal:
        """The refusal of one prompt; the first one is printed at once."""
        said = self.caller.clean(text)
        if not self.has_refused:
            self.has_refused = True
            self.caller.say_once(f"the server refused a prompt, which is skipped: {said}")
        return Refusal("refused_by_server", said)

    def payload(self, request: AnswerRequest, seed: int) -> dict[str, Any]:
        """The body of a request with every setting under its own name, even those that are off (pitfall 14)."""
        sampling = NEUTRAL | self.settings.active()
        limit = min(int(sampling.pop("max_new_tokens")), request.limit)
        body: dict[str, Any] = {"model": self.model, "messages": request.messages, "max_tokens": limit}
        if request.tools:
            body["tools"] = list(request.tools)
        if told := options(self.tokenizer, self.thinking):
            body["chat_template_kwargs"] = told
        body |= sampling | {"seed": seed, RETURN_IDS: True}
        return {name: value for name, value in body.items() if name not in self.unknown}

    def _reply(self, url: str, request: AnswerRequest, body: dict[str, Any]) -> AnswerReply | Rejection:
        """The reply in a response's ``body``; raises ``FailureError`` if a field is missing or has a wrong type."""
        try:
            choice = body["choices"][0]
            said, reason = choice["message"], choice["finish_reason"]
            if not isinstance(reason, str):
                raise TypeError("a finish_reason that is text")
            message = _message(said)
            ids, prompt_ids = choice.get("token_ids"), body.get("prompt_token_ids")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise FailureError(f"a body without {error!r}: {str(body)[:SHOWN]}") from None
        if ids is None:
            return self._from_text(request, message, reason)
        if not are_ids(ids) or not (prompt_ids is None or are_ids(prompt_ids)):
            raise FailureError(f"expected token_ids to be lists of ids, got {str(ids)[:SHOWN]}")
        if not ids:
            return Rejection("empty_answer")
        if self.vocab_size is not None and (top := max([*ids, *(prompt_ids or ())])) >= self.vocab_size:
            raise ServerError(
                f"{url}: an answer has token id {top}, but the target has {self.vocab_size} ids: "
                "does it serve another model?"
            )
        cut = reason == "length" and not message["content"] and "tool_calls" not in message
        cut = cut and "reasoning_content" in message
        return AnswerReply(prompt_ids or request.prompt_ids, ids, reason, message, is_cut_in_reasoning=cut)

    def _from_text(self, request: AnswerRequest, message: Message, reason: str) -> AnswerReply | Rejection:
        """Make the ids from the text, with an end of turn only if the target ended the turn.

        The text's ids follow the prompt's ids directly, because a template might change what the target generated. Only
        if the server has moved reasoning or tool calls out of the text does the template put them back.
        """
        prompt_ids = request.prompt_ids
        if {"reasoning_content", "tool_calls"} & set(message):
            talk = [*request.messages, message]
            made = given_answer(self.tokenizer, talk, self.thinking, request.tools)
            if isinstance(made, Rejection):
                return made
            prompt_ids, ids = made
            ids = ids[:-1] if ids and ids[-1] in (*self.eos, self._end) else ids
        else:
            ids = self.tokenizer(message["content"], add_special_tokens=False)["input_ids"]
        if not ids:
            return Rejection("empty_answer")
        return AnswerReply(
            prompt_ids, [*ids, *[self._end] * (reason in ENDED)], reason, message, retokenized=True
        )

    @functools.cached_property
    def _end(self) -> int:
        """The id of the token with which the target ends a turn."""
        end = end_of_turn(self.tokenizer)
        return int(self.tokenizer.eos_token_id if end is None else self.tokenizer.convert_tokens_to_ids(end))

    async def _identify(self) -> tuple[str, int | None]:
        """The model's name (the first in each server's list if none is configured) and its context length."""
        found: list[tuple[str, int | None]] = []
        async with self.caller.client(self.config.concurrency) as client:
            for url in self.urls:
                found.append(await self.caller.retried([url], lambda url: self._model(client, url)))
        names = {name for name, _ in found}
        if len(names) > 1:
            raise ServerError(
                f"answers.openai.base_urls: expected one model, but the servers have {sorted(names)}"
            )
        return found[0][0], min((context for _, context in found if context is not None), default=None)

    async def _model(self, client: httpx.AsyncClient, url: str) -> tuple[str, int | None]:
        name, said = pick_model(body_of(await client.get(f"{url}/models")), self.config.model, url)
        return name, said.get("max_model_len")


class Gate:
    """Lets at most ``most`` requests run at a time, and fewer while a server reports too many requests."""

    def __init__(self, most: int) -> None:
        self.most, self.limit, self.running = most, float(most), 0
        self.changed = asyncio.Condition()

    async def __aenter__(self) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.running < max(1, int(self.limit)))
            self.running += 1

    async def __aexit__(self, *_: object) -> None:
        async with self.changed:
            self.running -= 1
            self.changed.notify_all()

    def narrow(self) -> None:
        """Halve the limit."""
        self.limit = max(1.0, self.limit / 2)

    def widen(self) -> None:
        """Raise the limit by its inverse, so that as many successes as the limit raise it by about one."""
        self.limit = min(float(self.most), self.limit + 1 / self.limit)


def check_config(config: OpenAIConfig) -> None:
    """Raise ``ConfigError`` naming the key whose URL cannot be used."""
    for url in config.base_urls:
        check_url(url, "answers.openai.base_urls", "answers.openai.api_key_env")


def _message(said: dict[str, Any]) -> Message:
    """The assistant's message of a response with its reasoning (pitfall 5), whose name differs between servers."""
    message: Message = {"role": "assistant", "content": said.get("content") or ""}
    reasoning = said.get("reasoning_content") or said.get("reasoning")
    if not isinstance(message["content"], str) or not isinstance(reasoning, str | None):
        raise TypeError("text content")
    calls = calls_of(said.get("tool_calls"))
    more = {"reasoning_content": reasoning, "tool_calls": calls}
    return message | {name: value for name, value in more.items() if value}
