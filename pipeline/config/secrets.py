"""Secrets in URLs: refused in the config before Hydra writes it, and cut out of what is shown or recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from pipeline.config.rules import ConfigError, together

HIDDEN = "***"
SECRET = re.compile(
    r"(?<![a-z])(api_?key|secret|password|passwd|(access|auth)[_-]?token)$", re.IGNORECASE
)  # as the name of a field
CREDENTIALS = re.compile(r"(?<=//)[^/?#\s]+@")  # user:password@ of a URL
PARAMETER = re.compile(r"([?&;#])([^=&;#?\s]+)=([^&;#\s'\"\])]+)")  # name=value in the query of a URL
NAMED_SECRET = re.compile(r"key|token|secret|passw|pwd|auth|credential|^sig", re.IGNORECASE)


def hidden(text: str) -> str:
    """``text`` without users, passwords and secret parameters in the URLs in it."""
    return PARAMETER.sub(_parameter, CREDENTIALS.sub(f"{HIDDEN}@", text)) if "//" in text else text


def scrub(value: Any, key: str = "") -> Any:
    """``value`` without secrets: texts under a key such as ``api_key``, and those in URLs."""
    if isinstance(value, Mapping):
        return {str(name): scrub(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [scrub(item, key) for item in value]
    if isinstance(value, str):
        return HIDDEN if SECRET.search(key) else hidden(value)
    return value


def refuse_secrets(values: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` that names the keys of ``values`` in which a URL has a secret, and not the secret."""
    if found := list(_with_secrets(values, "")):
        remedy = "expected no secret in a URL; an environment variable that api_key_env names may hold it"
        raise ConfigError(together([f"{key}: {remedy}" for key in found]))


def pattern(secret: str) -> re.Pattern[str]:
    """What finds ``secret`` as it is, percent-encoded (once or more) or as a JSON text writes it."""
    return re.compile(
        "".join(
            rf"\\*(?:{re.escape(letter)}|(?i:{''.join(f'%(?:25)*{byte:02x}' for byte in letter.encode())})"
            rf"|(?i:u{ord(letter):04x}))"
            for letter in secret
        )
    )


def _parameter(found: re.Match[str]) -> str:
    before, name, _ = found.groups()
    return f"{before}{name}={HIDDEN}" if NAMED_SECRET.search(unquote(name)) else found[0]


def _with_secrets(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _with_secrets(item, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _with_secrets(item, f"{key}[{number}]")
    elif isinstance(value, str) and hidden(value) != value:
        yield key
