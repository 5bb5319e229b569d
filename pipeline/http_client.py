"""Asking HTTP servers: bounded retries, failures told apart from refusals, the key kept out of every message."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import ssl
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from data_specs.errors import UserError
from pipeline.config import AskingConfig, ConfigError
from pipeline.console import say

RETRIED = {408, 429}  # and 5xx: the server may do better later
LONGEST_PAUSE = 60.0  # seconds
SHOWN = 500  # characters of a server's message in an error


class ServerError(UserError):
    """A server that cannot be used; the message names it and says what came back."""


class FailureError(Exception):
    """One attempt failed in a way that another may not."""


class RefusalError(Exception):
    """The server understood and said no (``status``); asking again would not help."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"status {status}: {text}")
        self.status = status


class Caller:
    """Asks servers as ``config`` says; ``section`` names it in errors (``answers.openai``).

    Raises ``ConfigError`` for a number out of its range, and where the key's environment variable is not set.
    """

    def __init__(self, config: AskingConfig, section: str) -> None:
        for name, least in (("retries", 0), ("backoff", 0), ("timeout", 0)):
            if getattr(config, name) < least:
                raise ConfigError(f"{section}.{name}={getattr(config, name)}: expected at least {least}")
        self.config = config
        self.key = _key(config, section)
        self.said: set[str] = set()
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs a line a request otherwise

    def client(self, connections: int = 1) -> httpx.AsyncClient:
        """A client with the key in its headers; to be closed by the caller."""
        limits = httpx.Limits(max_connections=connections)
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return httpx.AsyncClient(timeout=self.config.timeout, limits=limits, headers=headers, verify=_tls())

    async def retried(self, urls: Sequence[str], attempt: Callable[[str], Any]) -> Any:
        """``attempt(url)``, at the next server when it fails, at most ``retries`` more; pauses double.

        Raises ``ServerError`` with the last failure, and at once for a refusal that ``attempt`` lets through.
        """
        failure = ""
        for number in range(self.config.retries + 1):
            url = urls[number % len(urls)]
            try:
                return await attempt(url)
            except (FailureError, httpx.TransportError, httpx.DecodingError) as error:
                failure = self.clean(f"{url}: {error or type(error).__name__}")
            except RefusalError as error:
                raise ServerError(self.clean(f"{url}: {error}")) from None
            if number < self.config.retries:
                pause = min(LONGEST_PAUSE, self.config.backoff * 2**number)
                self.say_once(f"{failure}; asking again in {pause:g} s")
                await asyncio.sleep(pause)
        raise ServerError(f"{failure} (after {self.config.retries + 1} attempts)")

    def say_once(self, text: str) -> None:
        """Show ``text`` unless it was shown before."""
        if text not in self.said:
            self.said.add(text)
            say(text.replace("[", r"\["))

    def clean(self, text: str) -> str:
        """``text`` without the key, which a server may quote."""
        return text.replace(self.key, "***") if self.key else text


def check_url(url: str, name: str, remedy: str) -> None:
    """Raise ``ConfigError`` naming the config key ``name``; ``remedy``: where a key for the server belongs."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{name}: expected http(s)://host/..., got {url!r}: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"{name}: expected http(s)://host/..., got {url!r}")
    if parsed.userinfo:
        raise ConfigError(f"{name}: no user or password in a URL; see {remedy}")


def text_of(response: httpx.Response) -> str:
    """The text of a response; raises ``FailureError`` or ``RefusalError`` for a status that is no success."""
    status = response.status_code
    if status in RETRIED or status >= 500:
        raise FailureError(f"status {status}: {response.text[:SHOWN]}")
    if status >= 300:
        raise RefusalError(status, response.text[:SHOWN])
    return response.text


def body_of(response: httpx.Response) -> dict[str, Any]:
    """The JSON object of a response; raises ``FailureError`` or ``RefusalError`` for anything else."""
    text = text_of(response)
    try:
        body = response.json()
    except ValueError:
        raise FailureError(f"expected JSON, got {text[:SHOWN]!r}") from None
    if not isinstance(body, dict):
        raise FailureError(f"expected a JSON object, got {type(body).__name__}")
    return body


def pick_model(body: dict[str, Any], wanted: str | None, url: str) -> tuple[str, dict[str, Any]]:
    """(name, all that is said of it) of the model ``wanted``, or of the first, in what ``/v1/models`` answered.

    Raises ``FailureError`` for a body that is no such list, and ``ServerError`` where the model is not in it.
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


@functools.cache
def _tls() -> ssl.SSLContext:
    """Once a process: it reads all the certificates that are trusted."""
    return httpx.create_ssl_context()


def _key(config: AskingConfig, section: str) -> str | None:
    if config.api_key_env is None:
        return None
    if not os.environ.get(config.api_key_env):
        raise ConfigError(f"{section}.api_key_env: the environment variable {config.api_key_env} is not set")
    return os.environ[config.api_key_env]
