"""Held-out prompts of the training data, for the calibration. They are never trained on and never reported."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from data_specs.manifest import file_record
from pipeline.config import ConfigError, DataConfig, SourceConfig
from pipeline.prompts.benchmarks import Prompt, chosen
from pipeline.prompts.rows import Message, Rejection, Tool
from pipeline.prompts.sources import load_rows, local_files
from pipeline.prompts.training import TrainingPrompt, prompt_of

NAME = "heldout"
OFF = "evaluate.calibrate=false leaves the calibration out"


class TooFewError(ConfigError):
    """There are too few held-out prompts, or rounds of them, for a calibration; the message says what is needed."""


def check(data: DataConfig) -> None:
    """Raise ``ConfigError`` if ``data`` cannot have held-out prompts."""
    if data.heldout <= 0:
        raise ConfigError(f"data.heldout={data.heldout}: the calibration needs held-out prompts; {OFF}")
    if not data.sources:
        raise ConfigError(f"data.sources: the calibration needs a source of prompts, got none; {OFF}")


def contents(data: DataConfig) -> list[Any]:
    """Everything that decides which prompts are held out: the shares, and each source's file checksums or Hub id."""
    shares: list[Any] = [data.heldout, data.benchmark, [_source_contents(source) for source in data.sources]]
    # The default adds nothing, so that work finished before this key existed is still found.
    return shares + [data.control_tokens] * (data.control_tokens != "keep")


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

    Each source is read only as far as needed. Three kinds of prompts are left out: those whose key is in ``reported``,
    because a calibration is judged on prompts that it never saw; those with tools, unless ``with_tools``; and, with
    ``data.control_tokens=reject``, those whose user wrote a token of ``control``. Raises ``TooFewError`` if no prompt
    is left.
    """
    check(data)
    sources = deque(_heldout(source, data, control) for source in data.sources)
    found: dict[str, tuple[list[Message], list[Tool]]] = {}
    while sources and len(found) < count:
        source = sources.popleft()
        for prompt in source:
            if prompt.key not in found and prompt.key not in reported and (with_tools or not prompt.tools):
                messages = [message for message in prompt.messages if message["role"] != "assistant"]
                found[prompt.key] = (messages, prompt.tools)
                sources.append(source)
                break
    if not found:
        raise TooFewError(
            f"data.heldout={data.heldout}: data={data.name} has no held-out prompt that is neither in a benchmark of "
            f"this evaluation nor trained on, so that none is left for the calibration; {OFF}"
        )
    return chosen(NAME, list(found.items()), None)


def _heldout(source: SourceConfig, data: DataConfig, control: Sequence[str]) -> Iterator[TrainingPrompt]:
    """Each held-out row of ``source`` that the target can answer, read as training reads it."""
    for row in load_rows(source):
        prompt = prompt_of(row, data, False, control)
        if not isinstance(prompt, Rejection) and prompt.split == "heldout":
            yield prompt
