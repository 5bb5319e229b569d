"""Clients of vLLM's and llama.cpp's servers: they answer one prompt at a time, and their counters tell of the drafts.

Prompts and answers are token ids, so nothing depends on the server's chat template. Every setting of the sampler is
sent, also those that are off, because servers take defaults from the target's generation config or their command line.

    vLLM       /metrics counts for the whole server. The increase during one answer belongs to that answer if the server
               answers nobody else; to check this, ``generation_tokens`` must grow by exactly the answer's tokens.
    llama.cpp  The answer's own ``timings`` tell the drafted and accepted tokens. If the server was started with
               --metrics, /metrics also counts verification steps and positions.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from pipeline.config import Config
from pipeline.decoding.sampling import Sampler
from pipeline.http_client import (
    SHOWN,
    Caller,
    FailureError,
    RefusalError,
    ServerError,
    are_ids,
    body_of,
    pick_model,
    text_of,
)

# A line of /metrics: name, labels, value.
SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\S+)?")
POSITION = re.compile(r'position="(\d+)"')
SPECULATIVE = {
    "spec_decode_num_drafts_total": "drafts",
    "spec_decode_num_draft_tokens_total": "drafted",
    "spec_decode_num_accepted_tokens_total": "accepted",
    "spec_decode_num_accepted_tokens_per_pos_total": "at",
}
GENERATED = "generated"
SETTLE_SECONDS, SETTLE_PAUSE = 5.0, 0.02  # counters may lag behind an answer
Metrics = dict[str, int]  # drafts, drafted, accepted, generated, and at/0, at/1, ... by position


@dataclass(frozen=True)
class Counters:
    """Counts of one answer; None if the engine does not tell."""

    drafts: int | None  # verification steps with drafts
    drafted: int
    accepted: int
    accepted_at: list[int] | None  # [k-1]: steps that accepted at least k drafts


@dataclass(frozen=True)
class ServedReply:
    """One answer of a server."""

    ids: list[int]
    finish: str  # stop or length
    seconds: float  # by the client's clock
    counters: Counters | None  # None for a server without a draft


@dataclass(frozen=True)
class Identity:
    """What a server says about itself."""

    model: str  # without the path on its machine
    version: str | None
    context: int | None  # positions of one request
    hidden: int | None = None  # H, the size of hidden states


class EngineServer:
    """The server at ``url``, which must have a draft if ``drafts`` is true, and none otherwise."""

    ENGINE, PREFIX, TOKENS, PATH = "", "", "", ""

    def __init__(
        self, url: str, caller: Caller, sampler: Sampler, eos: tuple[int, ...], drafts: bool
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.caller, self.sampler, self.eos, self.drafts = caller, sampler, eos, drafts
        self.model = ""

    async def identify(self, client: httpx.AsyncClient) -> Identity:
        """Ask for the server's identity; raises ``ServerError`` if it lacks the draft, or has one unexpectedly."""

        async def attempt(url: str) -> Identity:
            body = body_of(await client.get(f"{url}/v1/models"))
            self.model, said = pick_model(body, self.caller.config.model, url)
            self.check(await self.metrics(client))
            return await self.describe(client, said)

        found: Identity = await self.caller.retried([self.url], attempt)
        return found

    async def answer(self, client: httpx.AsyncClient, ids: list[int], limit: int, seed: int) -> ServedReply:
        """Answer the prompt ``ids`` with at most ``limit`` tokens; raises ``ServerError`` if the server does not."""
        attempt = partial(self._attempt, client, self.payload(ids, limit, seed), limit)
        reply: ServedReply = await self.caller.retried([self.url], attempt)
        return reply

    async def _attempt(
        self, client: httpx.AsyncClient, payload: dict[str, Any], limit: int, url: str
    ) -> ServedReply:
        before = await self.metrics(client) if self.drafts else None
        started = time.perf_counter()
        response = await client.post(f"{url}{self.PATH}", json=payload)
        seconds = time.perf_counter() - started
        body = body_of(response)
        ids, finish = self.parse(body)
        if not are_ids(ids) or not 0 < len(ids) <= limit:
            raise FailureError(f"expected 1 to {limit} token ids, got {str(ids)[:SHOWN]}")
        counted = None if before is None else await self._settled(client, before, len(ids))
        return ServedReply(ids, finish, seconds, self.counters(body, counted))

    async def _settled(self, client: httpx.AsyncClient, before: Metrics, tokens: int) -> Metrics:
        """Wait until the counters include exactly this answer's ``tokens``; returns the increase."""
        until = time.monotonic() + SETTLE_SECONDS
        while True:
            grown = difference(before, await self.metrics(client) or {})
            if grown[GENERATED] == tokens:
                return grown
            if grown[GENERATED] > tokens or time.monotonic() > until:
                raise FailureError(
                    f"/metrics counted {grown[GENERATED]} tokens during an answer of {tokens}; the server must not "
                    "answer others during an evaluation, because its counters do not tell answers apart"
                )
            await asyncio.sleep(SETTLE_PAUSE)

    async def metrics(self, client: httpx.AsyncClient) -> Metrics | None:
        """The current counters; None if the server has no /metrics."""
        response = await client.get(f"{self.url}/metrics")
        if response.status_code in (404, 501):
            return None
        return parse_metrics(text_of(response), self.PREFIX, self.TOKENS)

    async def told(self, client: httpx.AsyncClient, path: str) -> dict[str, Any]:
        """The body at ``path``; empty if the server does not have it."""
        try:
            return body_of(await client.get(f"{self.url}{path}"))
        except RefusalError:
            return {}

    # The methods below differ between engines.

    def check(self, metrics: Metrics | None) -> None:
        """Raise ``ServerError`` if the counters of drafts do not fit ``drafts``."""
        raise NotImplementedError

    async def describe(self, client: httpx.AsyncClient, said: dict[str, Any]) -> Identity:
        """The identity of the server, whose entry for the model in /v1/models is ``said``."""
        raise NotImplementedError

    def payload(self, ids: list[int], limit: int, seed: int) -> dict[str, Any]:
        """The body of a request."""
        raise NotImplementedError

    def parse(self, body: dict[str, Any]) -> tuple[Any, str]:
        """Ids and finish of a response; raises ``FailureError`` for a field with an unexpected value."""
        raise NotImplementedError

    def counters(self, body: dict[str, Any], grown: Metrics | None) -> Counters | None:
        """Counters of an answer from its response and the increase of /metrics."""
        raise NotImplementedError


class VLLM(EngineServer):
    """vLLM's OpenAI-compatible server; ``cache_salt`` keeps answers from reusing each other's prefills."""

    ENGINE, PREFIX, TOKENS, PATH = "vllm", "vllm:", "generation_tokens_total", "/v1/completions"
    asked = 0

    def check(self, metrics: Metrics | None) -> None:
        has_draft = "drafts" in (metrics or {})
        if self.drafts and not has_draft:
            raise ServerError(
                f"{self.url}/metrics: no counters of speculative decoding ({self.PREFIX}spec_decode_...); was the "
                "server started with a draft (launch/serve_draft.sh vllm EXPORT TARGET)?"
            )
        if not self.drafts and has_draft:
            raise ServerError(f"plain_server={self.url}: expected a server without a draft, but it drafts")

    async def describe(self, client: httpx.AsyncClient, said: dict[str, Any]) -> Identity:
        version = (await self.told(client, "/version")).get("version")
        shown = str(said.get("root") or self.model).rstrip("/").rpartition("/")[2]
        return Identity(shown, version and str(version), _count(said.get("max_model_len")))

    def payload(self, ids: list[int], limit: int, seed: int) -> dict[str, Any]:
        s = self.sampler
        self.asked += 1
        shaping = {"temperature": 0.0} if s.greedy else {"temperature": s.temperature, "seed": seed}
        if s.greedy:
            s = Sampler()  # no truncation changes the mode
        return {
            "model": self.model, "prompt": ids, "max_tokens": limit, "stop_token_ids": list(self.eos),
            "return_token_ids": True, "cache_salt": f"draftline-{time.time_ns()}-{self.asked}", "top_p": s.top_p or 1.0,
            "top_k": s.top_k or -1, "min_p": s.min_p or 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        } | shaping  # fmt: skip

    def parse(self, body: dict[str, Any]) -> tuple[Any, str]:
        try:
            choice = body["choices"][0]
            ids, reason = choice.get("token_ids"), choice["finish_reason"]
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise FailureError(f"the response lacks {error!r}: {str(body)[:SHOWN]}") from None
        if ids is None:
            raise ServerError(f"{self.url}: the answer has no token_ids; use vLLM 0.10.2 or later")
        if reason not in ("stop", "length"):
            raise FailureError(f"finish_reason: expected stop or length, got {reason!r}")
        return ids, reason

    def counters(self, body: dict[str, Any], grown: Metrics | None) -> Counters | None:
        if grown is None:
            return None
        return Counters(grown["drafts"], grown["drafted"], grown["accepted"], _at(grown))


class LlamaCpp(EngineServer):
    """llama.cpp's server; it gets the order of the sampler's steps from here, and must not reuse prompts."""

    ENGINE, PREFIX, TOKENS, PATH = "llama_cpp", "llamacpp:", "tokens_predicted_total", "/completion"
    FINISH = {"eos": "stop", "word": "stop", "limit": "length"}
    EXACT = 1_000_000  # it writes counters with six digits

    async def metrics(self, client: httpx.AsyncClient) -> Metrics | None:
        """The current counters; None without /metrics, or if a counter has more digits than are written."""
        found = await super().metrics(client)
        if found is None or all(n < self.EXACT for name, n in found.items() if not name.startswith("at/")):
            return found
        self.caller.say_once(
            f"{self.url}/metrics: counters of more than six digits are rounded, so verification steps are unknown; "
            "restart the server to get them"
        )
        return None

    def check(self, metrics: Metrics | None) -> None:
        """Do nothing: these counters exist without a draft too, so only the first answer shows whether there is one."""

    async def describe(self, client: httpx.AsyncClient, said: dict[str, Any]) -> Identity:
        props = await self.told(client, "/props")
        settings, meta = props.get("default_generation_settings"), said.get("meta")
        context = settings.get("n_ctx") if isinstance(settings, dict) else None
        hidden = meta.get("n_embd") if isinstance(meta, dict) else None
        version, shown = props.get("build_info"), self.model.rpartition("/")[2]
        return Identity(shown, version and str(version), _count(context), _count(hidden))

    def payload(self, ids: list[int], limit: int, seed: int) -> dict[str, Any]:
        s = self.sampler
        body: dict[str, Any] = {
            "prompt": ids, "n_predict": limit, "return_tokens": True, "cache_prompt": False, "stream": False,
            "mirostat": 0, "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        }  # fmt: skip
        if s.greedy:
            return body | {"temperature": 0.0, "top_k": 1, "samplers": ["top_k", "temperature"]}
        order = ["temperature", "top_k", "top_p", "min_p"]
        truncation = {"top_k": s.top_k or 0, "top_p": s.top_p or 1.0, "min_p": s.min_p or 0.0}
        return body | truncation | {"temperature": s.temperature, "samplers": order, "seed": seed}

    def parse(self, body: dict[str, Any]) -> tuple[Any, str]:
        reason = body.get("stop_type")
        if reason not in self.FINISH:
            raise FailureError(f"stop_type: expected one of {sorted(self.FINISH)}, got {str(body)[:SHOWN]}")
        return body.get("tokens"), self.FINISH[reason]

    def counters(self, body: dict[str, Any], grown: Metrics | None) -> Counters | None:
        timings = body.get("timings")
        if not isinstance(timings, dict):
            raise FailureError(f"the answer has no timings: {str(body)[:SHOWN]}")
        told = timings.get("draft_n"), timings.get("draft_n_accepted")
        if not self.drafts:
            if told[0]:
                raise ServerError(
                    f"plain_server={self.url}: expected a server without a draft, but it drafts"
                )
            return None
        # An answer that is too short for a draft has neither of the two.
        drafted, accepted = map(_count, (0, 0) if told == (None, None) else told)
        if drafted is None or accepted is None:
            raise FailureError(f"timings: draft_n and draft_n_accepted: expected counts, got {told}")
        if grown is None or "drafts" not in grown:
            return Counters(None, drafted, accepted, None)
        return Counters(grown["drafts"], drafted, accepted, _at(grown))


ENGINES: dict[str, type[EngineServer]] = {server.ENGINE: server for server in (VLLM, LlamaCpp)}


def make_server(
    config: Config, url: str, caller: Caller, sampler: Sampler, eos: tuple[int, ...]
) -> EngineServer:
    """The client of ``config.engine`` for ``url``; it must have a draft if it is ``config.server``."""
    return ENGINES[str(config.engine)](url, caller, sampler, eos, drafts=url == config.server)


def parse_metrics(text: str, prefix: str, tokens: str) -> Metrics:
    """Counters in Prometheus' text format, summed over engines; the metric ``tokens`` counts generated tokens.

    Raises ``FailureError`` for a value that is not a count, and if generated tokens are not counted.
    """
    names = SPECULATIVE | {tokens: GENERATED}
    found: Metrics = {}
    for line in text.splitlines():
        match = SAMPLE.fullmatch(line.strip())
        if match is None or (name := names.get(match[1].removeprefix(prefix))) is None:
            continue
        if name == "at":
            position = POSITION.search(match[2] or "")
            name = f"at/{position[1] if position else line}"
        found[name] = found.get(name, 0) + _counted(line, match[3])
    if GENERATED not in found:
        raise FailureError(f"/metrics lacks {prefix}{tokens}: {text[:SHOWN]!r}")
    return found


def difference(before: Metrics, after: Metrics) -> Metrics:
    """The increase of every counter; raises ``FailureError`` if one fell, because the server was restarted."""
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    fallen = [name for name, value in grown.items() if value < 0] + [n for n in before if n not in after]
    if fallen:
        was, now = before[fallen[0]], after.get(fallen[0])
        raise FailureError(f"/metrics: {fallen[0]} went from {was} to {now}; was the server restarted?")
    return grown


def _counted(line: str, text: str) -> int:
    with suppress(ValueError):
        if (value := float(text)).is_integer() and value >= 0:
            return int(value)
    raise FailureError(f"/metrics: expected a count, got {line[:SHOWN]!r}")


def _at(grown: Metrics) -> list[int] | None:
    """Counters by ascending position; None if there are none."""
    places = sorted(int(name[3:]) for name in grown if name.startswith("at/"))
    return [grown[f"at/{place}"] for place in places] or None


def _count(value: Any) -> int | None:
    """``value`` if it is a count, else None."""
    return value if type(value) is int and value >= 0 else None
