"""Asks HTTP servers with bounded retries, distinguishes failures from refusals, and keeps the key out of messages."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
import ssl
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from data_specs.errors import UserError
from pipeline.config import AskingConfig, ConfigError
from pipeline.config.secrets import HIDDEN, hidden, pattern
from pipeline.console import say

RETRIED = {408, 429}  # and 5xx: another attempt may succeed
TOO_MANY = 429
LONGEST_PAUSE = 60.0  # seconds
LONGEST_BODY = 64 * 2**20  # bytes; a million tokens with their ids take a tenth of it
SHOWN = 4000  # characters of a server's message that an error carries until the key is cut out of it
TOLD = (
    600  # characters of it that are printed; a key of which they would show the beginning is whole in SHOWN
)


class ServerError(UserError):
    """A server cannot be used; the message names it and shows its response."""


class ExhaustedError(ServerError):
    """Every attempt of one request failed; another request may still succeed."""


class FailureError(Exception):
    """One attempt failed, but another may succeed. The server asks to wait for ``pause`` seconds."""

    def __init__(self, text: str, status: int | None = None, pause: float = 0.0) -> None:
        super().__init__(text)
        self.status, self.pause = status, pause


class RefusalError(Exception):
    """The server refused the request (``status``), so asking again would not help."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"status {status}: {text}")
        self.status = status


class Caller:
    """Asks servers with the settings ``config``, which errors call ``section`` (such as ``answers.openai``).

    Raises ``ConfigError`` if the environment variable of the key is not set.
    """

    def __init__(self, config: AskingConfig, section: str) -> None:
        self.config = config
        self.key = os.environ.get(config.api_key_env or "")
        if config.api_key_env is not None and not self.key:
            raise ConfigError(
                f"{section}.api_key_env: the environment variable {config.api_key_env} is not set"
            )
        self.said: set[str] = set()
        logging.getLogger("httpx").setLevel(logging.WARNING)  # otherwise it logs every request

    def client(self, connections: int = 1) -> httpx.AsyncClient:
        """A client with the key in its headers. The caller has to close it."""
        limits = httpx.Limits(max_connections=connections)
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return httpx.AsyncClient(timeout=self.config.timeout, limits=limits, headers=headers, verify=_tls())

    async def post(self, client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON object that ``url`` answers. Raises as ``body_of``, or if the answer takes too long or is too long.

        ``timeout`` limits the whole answer, because a server that sends a byte now and then would never end.
        """
        try:
            async with (
                asyncio.timeout(self.config.timeout),
                client.stream("POST", url, json=body) as response,
            ):
                return body_of(await _bounded(response))
        except TimeoutError:
            raise FailureError(f"no whole answer within {self.config.timeout:g} s") from None

    async def retried(self, urls: Sequence[str], attempt: Callable[[str], Any]) -> Any:
        """``attempt(url)``; after a failure at the next of ``urls``, up to ``retries`` times with doubling pauses.

        Pauses are shortened at random, so that requests that failed together are not repeated together. Raises
        ``ExhaustedError`` with the last failure, and at once ``ServerError`` if ``attempt`` raises a refusal.
        """
        failure = ""
        for number in range(self.config.retries + 1):
            url, asked = urls[number % len(urls)], 0.0
            try:
                return await attempt(url)
            except (FailureError, httpx.TransportError, httpx.DecodingError) as error:
                failure = self.clean(f"{url}: {str(error) or type(error).__name__}")
                asked = error.pause if isinstance(error, FailureError) else 0.0
            except RefusalError as error:
                raise ServerError(self.clean(f"{url}: {error}")) from None
            if number < self.config.retries:
                pause = min(LONGEST_PAUSE, self.config.backoff * 2**number)
                self.say_once(f"{failure}; asking again in about {max(asked, pause):g} s")
                await asyncio.sleep(max(asked, pause * random.uniform(0.5, 1.0)))
        raise ExhaustedError(f"{failure} (after {self.config.retries + 1} attempts)")

    def say_once(self, text: str) -> None:
        """Show ``text`` unless it was shown before."""
        if text not in self.said:
            self.said.add(text)
            say(text)

    def clean(self, text: str) -> str:
        """``text`` without the key, which a server may quote in any encoding, and without secrets in URLs."""
        text = hidden(pattern(self.key).sub(HIDDEN, text) if self.key else text)
        return text if len(text) <= TOLD else f"{text[:TOLD]}..."


def check_url(url: str, name: str, remedy: str) -> None:
    """Raise ``ConfigError`` naming the config key ``name`` if ``url`` is invalid or contains a password.

    ``remedy`` says where a key for the server belongs.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(
            f"{name}: expected http(s)://host/..., got {hidden(url)!r}: {hidden(str(error))}"
        ) from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"{name}: expected http(s)://host/..., got {hidden(url)!r}")
    if parsed.userinfo or parsed.query or parsed.fragment:
        raise ConfigError(f"{name}: expected no user, password, query or fragment in a URL; see {remedy}")


def text_of(response: httpx.Response) -> str:
    """The text of a response. Raises ``FailureError`` or ``RefusalError`` unless the status is a success."""
    status = response.status_code
    if status in RETRIED or status >= 500:
        raise FailureError(f"status {status}: {response.text[:SHOWN]}", status, _retry_after(response))
    if status >= 300:
        raise RefusalError(status, response.text[:SHOWN])
    return response.text


def body_of(response: httpx.Response) -> dict[str, Any]:
    """The JSON object of a response. Raises ``FailureError`` or ``RefusalError`` for anything else."""
    text = text_of(response)
    try:
        body = response.json()
    except ValueError:
        raise FailureError(f"expected JSON, got {text[:SHOWN]!r}") from None
    if not isinstance(body, dict):
        raise FailureError(f"expected a JSON object, got {type(body).__name__}")
    return body


def pick_model(body: dict[str, Any], wanted: str | None, url: str) -> tuple[str, dict[str, Any]]:
    """(name, entry) of the model ``wanted``, or of the first, in ``body``, the answer of ``/v1/models``.

    Raises ``FailureError`` if ``body`` is no list of models, and ``ServerError`` if the model is not in it.
    """
    try:
        models = {str(model["id"]): dict(model) for model in body["data"]}
    except (KeyError, TypeError, ValueError) as error:
        raise FailureError(f"a list of models without {error!r}: {str(body)[:SHOWN]}") from None
    name = wanted or next(iter(models), None)
    if name is None or name not in models:
        raise ServerError(f"{url}: expected to serve {name or 'a model'}, got {sorted(models)}")
    return name, models[name]


def are_ids(value: Any) -> bool:
    """Whether ``value`` is a list of token ids."""
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


async def _bounded(response: httpx.Response) -> httpx.Response:
    """``response`` with its body. Raises ``FailureError`` if that is longer than any answer can be."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > LONGEST_BODY:
            raise FailureError(f"a body of more than {LONGEST_BODY >> 20} MiB")
        parts.append(part)
    headers = {name: value for name, value in response.headers.items() if name == "retry-after"}
    return httpx.Response(response.status_code, content=b"".join(parts), headers=headers)


def _retry_after(response: httpx.Response) -> float:
    """Seconds for which a busy server asks us to wait, at most ``LONGEST_PAUSE``; 0 if it does not ask."""
    try:
        return min(LONGEST_PAUSE, max(0.0, float(response.headers.get("retry-after", "0"))))
    except ValueError:  # a date; our own pauses will do
        return 0.0


@functools.cache
def _tls() -> ssl.SSLContext:
    """Made once per process, because it reads all trusted certificates."""
    return httpx.create_ssl_context()
