"""Answers by OpenAI-compatible servers (vLLM, SGLang, ...): concurrent requests, bounded retries.

The ids that a server returns (vLLM: ``return_token_ids``) are used as they are. Where it returns text only,
the ids are made from it by the target's template, and the reply says so.
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

# What OpenAI's own interface does not know. A setting that is off is sent as off, because vLLM would otherwise take the
# model's default; a strict server that refuses the name is asked again without it.
NEUTRAL = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
           "frequency_penalty": 0.0}  # fmt: skip
RETURN_IDS = "return_token_ids"
PROMPT_REFUSED = {400, 413, 422}  # of one prompt (too long, a content filter); other 4xx are of the set-up
ENDED = ("stop", "tool_calls")  # reasons of an answer that the target ended itself
SEEDS = 2**31


class OpenAISource:
    """Chat completions of one model by one or several servers that all serve it."""

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
        self.unknown: set[str] = set()  # fields of a request that a server does not know
        self.urls = [url.rstrip("/") for url in config.base_urls]
        self.caller = Caller(config, "answers.openai")
        self.has_refused = False
        self.model, self.context = asyncio.run(self._identify())

    def answer(
        self, requests: Sequence[AnswerRequest], seed: int, advance: Callable[[int], None]
    ) -> list[AnswerReply | Rejection]:
        """See ``AnswerSource.answer``. Raises ``ServerError`` when no request of ``requests`` succeeds.

        A prompt that the server refuses as such (``PROMPT_REFUSED``), and one that keeps failing beside others that do
        not, is a ``Refusal`` among the replies.
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
        """Whether a server refused a field that can be left out; it is not sent again."""
        optional = {name for name in (RETURN_IDS, *NEUTRAL) if name in payload and name in refusal}
        optional = {name for name in optional if name == RETURN_IDS or payload[name] == NEUTRAL[name]}
        if optional:
            self.caller.say_once(f"a server does not know {', '.join(sorted(optional))}: asking without")
            self.unknown |= optional
        return bool(optional)

    def _refused(self, text: str) -> Refusal:
        """The refusal of one prompt; the first one is shown as it comes."""
        said = self.caller.clean(text)
        if not self.has_refused:
            self.has_refused = True
            self.caller.say_once(f"a prompt was refused, going on without it: {said}")
        return Refusal("refused_by_server", said)

    def payload(self, request: AnswerRequest, seed: int) -> dict[str, Any]:
        """The body of a request: every setting under its own name, also those that are off (pitfall 14)."""
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
        """The reply in a response's ``body``; ``FailureError`` when a field is not what it should be."""
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
            raise FailureError(f"token_ids that are no ids: {str(ids)[:SHOWN]}")
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
        """Ids from the text, with the end of turn exactly where the target ended there.

        They follow the prompt's own ids: what a template would make of the text need not be what the target generated.
        Reasoning and tool calls that the server has taken out of the text are put back by the template.
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
        """The id with which the target ends a turn."""
        end = end_of_turn(self.tokenizer)
        return int(self.tokenizer.eos_token_id if end is None else self.tokenizer.convert_tokens_to_ids(end))

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


class Gate:
    """At most ``most`` requests at a time, fewer while a server says that it gets too many."""

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
        """Let one more in after as many successes as the limit has places."""
        self.limit = min(float(self.most), self.limit + 1 / self.limit)


def check_config(config: OpenAIConfig) -> None:
    """Raise ``ConfigError`` naming the key that cannot be used."""
    for url in config.base_urls:
        check_url(url, "answers.openai.base_urls", "answers.openai.api_key_env")


def _message(said: dict[str, Any]) -> Message:
    """The assistant's message of a response, reasoning kept (pitfall 5; servers differ in its name)."""
    message: Message = {"role": "assistant", "content": said.get("content") or ""}
    reasoning = said.get("reasoning_content") or said.get("reasoning")
    if not isinstance(message["content"], str) or not isinstance(reasoning, str | None):
        raise TypeError("text content")
    calls = calls_of(said.get("tool_calls"))
    more = {"reasoning_content": reasoning, "tool_calls": calls}
    return message | {name: value for name, value in more.items() if value}
