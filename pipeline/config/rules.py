"""Rules for the values of the config, and the check of every field against its rule.

A rule is the metadata of an ``Annotated`` type, so that a field tells its range where it is defined:
``workers: Natural = 2``. Elements of lists and values of dicts are checked as well; None is always let through.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from data_specs.errors import UserError


class ConfigError(UserError):
    """A value is not allowed, or values contradict each other; the message names the keys."""


@dataclass(frozen=True)
class Rule:
    """A test of a value, and the text that an error message says was expected."""

    expected: str
    holds: Callable[[Any], bool]


def at_least(least: float) -> Rule:
    """A finite number that is not below ``least``."""
    return Rule(f"at least {least}", lambda value: least <= value < math.inf)


def above(bound: float) -> Rule:
    """A finite number above ``bound``."""
    return Rule(f"a number above {bound}", lambda value: bound < value < math.inf)


def between(least: float, most: float) -> Rule:
    """A number from ``least`` to ``most``, both included."""
    return Rule(f"a number from {least} to {most}", lambda value: least <= value <= most)


def one_of(*choices: Any) -> Rule:
    """One of these values."""
    return Rule(f"one of {', '.join(map(str, choices))}", lambda value: value in choices)


ANY_NUMBER = Rule("any number", lambda value: True)  # marks a field whose range depends on another key
NOT_EMPTY = Rule("at least one element", lambda values: len(values) > 0)
EACH_ONCE = Rule("each element once", lambda values: len(set(values)) == len(values))
PAIR = Rule("two numbers", lambda values: len(values) == 2)

# A part of the names of artifacts, and so of folders of the store; two of them fit into a file name.
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
Name = Annotated[
    str,
    Rule(
        "at most 100 letters, digits, dots, dashes and underscores, the first a letter or digit",
        lambda value: len(value) <= 100 and SAFE_NAME.fullmatch(value) is not None,
    ),
]
Natural = Annotated[int, at_least(0)]
Count = Annotated[int, at_least(1)]
Share = Annotated[float, between(0, 1)]
Weight = Annotated[float, at_least(0)]
Positive = Annotated[float, above(0)]

# The sampler's fields, which requests, evaluations and pipeline/decoding/sampling.py have in common.
Temperature = Annotated[float, at_least(0)]
TopP = Annotated[float, Rule("a number above 0 and at most 1", lambda value: 0 < value <= 1)]
TopK = Count
MinP = Share
DraftSampling = Annotated[str, one_of("target", "greedy")]


def check_fields(values: object, prefix: str = "") -> None:
    """Check every field of the dataclass ``values`` against its rules, and those of the dataclasses in it.

    Raises ``ConfigError`` with every key whose value breaks a rule; ``prefix`` is written before the keys.
    """
    if found := list(broken(values, prefix)):
        raise ConfigError(together(found))


def together(messages: Sequence[str]) -> str:
    """A single message unchanged, or several as one text with a numbered line for each."""
    if len(messages) == 1:
        return messages[0]
    lines = "".join(f"\n  {number}. {message}" for number, message in enumerate(messages, 1))
    return f"{len(messages)} problems, and nothing was begun:{lines}"


def broken(values: object, prefix: str = "") -> Iterator[str]:
    """A message for every field of the dataclass ``values``, or of one in it, whose value breaks a rule."""
    kind: Any = type(values)
    for name, hint in _hints(kind).items():
        yield from _broken(f"{prefix}{name}", hint, getattr(values, name))


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _broken(key: str, hint: Any, value: Any) -> Iterator[str]:
    """Messages about ``value`` at ``key`` if it breaks a rule of ``hint``, the type of the field."""
    if value is None:
        return
    kind, inner = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(value):
        yield from broken(value, f"{key}.")
    elif kind is Annotated:
        failed = next((rule for rule in hint.__metadata__ if not rule.holds(value)), None)
        if failed is not None:
            yield f"{key}: expected {failed.expected}, got {value!r}"
        else:
            yield from _broken(key, inner[0], value)
    elif kind in (Union, UnionType):
        yield from _broken(key, next(part for part in inner if part is not type(None)), value)
    elif kind is list:
        for number, item in enumerate(value):
            yield from _broken(f"{key}[{number}]", inner[0], item)
    elif kind is dict:
        for name, item in value.items():
            yield from _broken(f"{key}.{name}", inner[1], item)
