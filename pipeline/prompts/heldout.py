"""Held-out prompts of the training data, for the calibration: never trained on, never reported."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from data_specs.manifest import file_record
from pipeline.config import ConfigError, DataConfig, SourceConfig
from pipeline.prompts.benchmarks import Prompt
from pipeline.prompts.rows import (
    Message,
    Rejection,
    Tool,
    messages_of,
    prompt_key,
    split_of,
    tools_of,
)
from pipeline.prompts.sources import load_rows, local_files
from pipeline.prompts.training import written

NAME = "heldout"
OFF = "evaluate.calibrate=false leaves the calibration out"


class TooFewError(ConfigError):
    """Too few held-out prompts, or rounds of them, for a calibration; the message names what is needed."""


def check(data: DataConfig) -> None:
    """Raise ``ConfigError`` where ``data`` can have no held-out prompt."""
    if data.heldout <= 0:
        raise ConfigError(f"data.heldout={data.heldout}: the calibration needs held-out prompts; {OFF}")
    if not data.sources:
        raise ConfigError(f"data.sources: the calibration needs a source of prompts, got none; {OFF}")


def contents(data: DataConfig) -> list[Any]:
    """All that decides which prompts are held out: the shares, and each source's file checksums or Hub id."""
    shares: list[Any] = [data.heldout, data.benchmark, [_source_contents(source) for source in data.sources]]
    return shares + [data.control_tokens] * (data.control_tokens != "keep")  # finished work is found again


def _source_contents(source: SourceConfig) -> Any:
    files = [file_record(path).sha256 for path in local_files(source)]
    return [files, source.limit] if files else asdict(source)


def heldout_prompts(
    data: DataConfig,
    count: int,
    reported: Collection[str],
    with_tools: bool = True,
    control: Sequence[str] = (),
) -> list[Prompt]:
    """At most ``count`` held-out prompts, taken from the sources in turn.

    Each source is read only as far as needed. Prompts whose key is in ``reported`` are left out, because a calibration
    is judged on prompts that it never saw, without ``with_tools`` those that have tools, and with
    ``data.control_tokens=reject`` those whose user wrote a token of ``control``. Raises ``TooFewError`` when no prompt
    is left.
    """
    check(data)
    sources = [_heldout(source, data, control) for source in data.sources]
    found: dict[str, tuple[list[Message], list[Tool]]] = {}
    while sources and len(found) < count:
        for source in list(sources):
            fresh = (
                p for p in source if p[0] not in found and p[0] not in reported and (with_tools or not p[2])
            )
            key, *said = next(fresh, (None, [], []))
            if key is None:
                sources.remove(source)
            elif len(found) < count:
                found[key] = (said[0], said[1])
    if not found:
        raise TooFewError(
            f"data.heldout={data.heldout}: data={data.name} has no held-out prompt that is neither in a benchmark of "
            f"this evaluation nor trained on, so that none is left for the calibration; {OFF}"
        )
    return [Prompt(NAME, i, key, *said) for i, (key, said) in enumerate(found.items())]


def _heldout(
    source: SourceConfig, data: DataConfig, control: Sequence[str]
) -> Iterator[tuple[str, list[Message], list[Tool]]]:
    """(key, system and user messages, tools) of each held-out row of ``source`` that the target can answer."""
    for row in load_rows(source):
        messages, tools = messages_of(row), tools_of(row)
        if isinstance(messages, Rejection) or isinstance(tools, Rejection):
            continue
        if any(m["role"] == "tool" for m in messages):
            continue
        if data.control_tokens == "reject" and written(messages, control):
            continue
        key = prompt_key(messages, tools)
        if split_of(key, data.heldout, data.benchmark) == "heldout":
            yield key, [m for m in messages if m["role"] != "assistant"], tools
