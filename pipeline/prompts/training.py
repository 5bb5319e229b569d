"""Reads the prompts of the configured sources into one form, counts rejections, splits by hash, takes a subset."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from data_specs.manifest import canonical
from pipeline.config import DataConfig
from pipeline.prompts.rows import Message, Rejection, Tool, messages_of, prompt_key, split_of, tools_of
from pipeline.prompts.sources import load_rows

SPLITS = ("train", "heldout", "benchmark")


@dataclass(frozen=True)
class TrainingPrompt:
    """One usable row: its key and split (see pipeline/prompts/rows.py), its category, conversation and tools."""

    key: str
    split: str
    category: str | None
    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)


@dataclass(frozen=True)
class TrainingPrompts:
    """The accepted rows in the order of the sources, and the count of every reason for a rejection."""

    rows: list[TrainingPrompt]
    read: int
    rejected: dict[str, int]
    details: dict[str, str] = field(
        default_factory=dict
    )  # reason -> details of the first row rejected for it
    control_tokens: dict[str, int] = field(default_factory=dict)  # token -> accepted rows whose user wrote it

    @property
    def accepted(self) -> int:
        """The number of usable rows. The other rows that were read are rejected."""
        return len(self.rows)

    def of(self, *splits: str) -> list[TrainingPrompt]:
        """The prompts of ``splits``."""
        return [prompt for prompt in self.rows if prompt.split in splits]

    def fingerprint(self) -> str:
        """SHA-256 over everything that depends on the data: an edited file counts as another input (pitfall 13)."""
        digest = hashlib.sha256(canonical([self.read, self.rejected]).encode())
        for prompt in self.rows:
            parts = [prompt.key, prompt.split, prompt.category, prompt.messages]
            digest.update(canonical([*parts, prompt.tools] if prompt.tools else parts).encode())
        return digest.hexdigest()


def load_prompts(data: DataConfig, given: bool = False, control: Sequence[str] = ()) -> TrainingPrompts:
    """Read ``data.sources``. Every row that is read is accepted or rejected.

    ``given`` and ``control`` are as in ``prompt_of``. Raises ``RowsError`` for a source that cannot be read.
    """
    accepted: dict[str, TrainingPrompt] = {}
    rejected: Counter[str] = Counter()
    details: dict[str, str] = {}
    read = 0
    for row in itertools.chain.from_iterable(load_rows(source) for source in data.sources):
        read += 1
        prompt = prompt_of(row, data, given, control)
        if isinstance(prompt, Rejection):
            rejected[prompt.reason] += 1
            details.setdefault(prompt.reason, prompt.detail)
        elif prompt.key in accepted:
            rejected["duplicate_prompt"] += 1
        else:
            accepted[prompt.key] = prompt
    rows = list(accepted.values())
    kept = _subset(rows, data.max_prompts)
    if len(kept) < len(rows):
        rejected["beyond_max_prompts"] = len(rows) - len(kept)
    found = Counter(token for prompt in kept for token in _written(prompt.messages, control))
    return TrainingPrompts(kept, read, dict(sorted(rejected.items())), details, dict(sorted(found.items())))


def count_table(prompts: TrainingPrompts) -> list[tuple[str, int]]:
    """Lines for a table: the rows read, accepted by split, and rejected by reason."""
    details = prompts.details
    return [
        ("read", prompts.read),
        *((f"accepted, {split}", len(prompts.of(split))) for split in SPLITS),
        *((f"rejected, {Rejection(why, details.get(why, ''))}", n) for why, n in prompts.rejected.items()),
        *((f"accepted, {token} in a user's text", n) for token, n in prompts.control_tokens.items()),
    ]


def _written(messages: Sequence[Message], control: Sequence[str]) -> list[str]:
    """The tokens of ``control`` in the messages that are not the assistant's."""
    said = "\n".join(message["content"] for message in messages if message["role"] != "assistant")
    return [token for token in control if token in said]


def prompt_of(
    row: dict[str, Any] | Rejection, data: DataConfig, given: bool, control: Sequence[str]
) -> TrainingPrompt | Rejection:
    """The prompt in ``row``, or why it cannot be used.

    With ``given`` the data's own answers are used: the conversation must have one, and may have tool results. Without
    it, a row with tool results is rejected, because the target has not made the calls that they answer.
    ``control`` lists tokens that only the template should write; ``data.control_tokens`` decides about rows with one.
    """
    messages, tools = messages_of(row), tools_of(row)
    if isinstance(row, Rejection):
        return row
    if isinstance(messages, Rejection):
        return messages
    if isinstance(tools, Rejection):
        return tools
    roles = {message["role"] for message in messages}
    if given and "assistant" not in roles:
        return Rejection("no_answer")
    if not given and "tool" in roles:
        return Rejection("tool_results")
    if data.control_tokens == "reject" and (found := _written(messages, control)):
        return Rejection("control_tokens", ", ".join(found))
    key = prompt_key(messages, tools)
    category = row.get("category")
    # A category is only shown and counted, so characters that cannot be encoded may be replaced.
    shown = None if category is None else str(category).encode(errors="replace").decode()
    return TrainingPrompt(key, split_of(key, data.heldout, data.benchmark), shown, messages, tools)


def _subset(rows: Sequence[TrainingPrompt], limit: int | None) -> list[TrainingPrompt]:
    """The ``limit`` rows with the lowest salted hashes of their keys, in their order. A larger limit only adds rows.

    The hash is salted because the key alone decides the split: the lowest keys all belong to one split.
    """
    if limit is None or len(rows) <= limit:
        return list(rows)
    chosen = sorted(rows, key=lambda prompt: hashlib.sha256(b"subset" + prompt.key.encode()).digest())[:limit]
    keys = {prompt.key for prompt in chosen}
    return [prompt for prompt in rows if prompt.key in keys]
