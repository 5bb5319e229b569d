"""Prompts from the configured sources: one form, counted rejections, a split by hash, a stable subset."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from data_specs.manifest import canonical
from pipeline.config import DataConfig
from pipeline.prompts.rows import Message, Rejection, Tool, messages_of, prompt_key, split_of, tools_of
from pipeline.prompts.sources import load_rows

SPLITS = ("train", "heldout", "benchmark")


@dataclass(frozen=True)
class TrainingPrompt:
    """One usable row: its key and split (pipeline/prompts/rows.py), category if any, conversation and tools."""

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
    )  # reason -> more about its first row, where there is more
    control_tokens: dict[str, int] = field(default_factory=dict)  # token -> accepted rows whose user wrote it

    @property
    def accepted(self) -> int:
        """Rows that can be used; with the rejected ones they are all that were read."""
        return len(self.rows)

    def of(self, *splits: str) -> list[TrainingPrompt]:
        """The prompts of ``splits``."""
        return [prompt for prompt in self.rows if prompt.split in splits]

    def fingerprint(self) -> str:
        """SHA-256 over everything that depends on the data: an edited file is another input (pitfall 13)."""
        digest = hashlib.sha256(canonical([self.read, self.rejected]).encode())
        for prompt in self.rows:
            parts = [prompt.key, prompt.split, prompt.category, prompt.messages]
            digest.update(canonical([*parts, prompt.tools] if prompt.tools else parts).encode())
        return digest.hexdigest()


def load_prompts(data: DataConfig, given: bool = False, control: Sequence[str] = ()) -> TrainingPrompts:
    """Read ``data.sources``; accepted + rejected = read.

    ``given``: the data's own answers are wanted, so a conversation needs one, and tool results may stay; a
    target that answers anew has not made the calls that they belong to. ``control``: tokens that nobody but
    the template should write; ``data.control_tokens`` says what becomes of rows that hold one. Raises
    ``ConfigError`` for shares that do not fit and ``RowsError`` for a source that cannot be read.
    """
    accepted: dict[str, TrainingPrompt] = {}
    rejected: Counter[str] = Counter()
    details: dict[str, str] = {}
    read = 0
    for row in _rows(data):
        read += 1
        prompt = _prompt(row, data, given, control)
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
    found = Counter(token for prompt in kept for token in written(prompt.messages, control))
    return TrainingPrompts(kept, read, dict(sorted(rejected.items())), details, dict(sorted(found.items())))


def count_table(prompts: TrainingPrompts) -> list[tuple[str, int]]:
    """Lines for a table: read, accepted by split, rejected by reason."""
    splits = [(f"accepted, {split}", len(prompts.of(split))) for split in SPLITS]
    return [
        ("read", prompts.read),
        *splits,
        *(
            (f"rejected, {Rejection(why, prompts.details.get(why, ''))}", n)
            for why, n in prompts.rejected.items()
        ),
        *((f"accepted, {token} in a user's text", n) for token, n in prompts.control_tokens.items()),
    ]


def _rows(data: DataConfig) -> Iterator[dict[str, Any] | Rejection]:
    for source in data.sources:
        yield from load_rows(source)


def written(messages: Sequence[Message], control: Sequence[str]) -> list[str]:
    """The tokens of ``control`` that stand in what others than the assistant wrote."""
    said = "\n".join(message["content"] for message in messages if message["role"] != "assistant")
    return [token for token in control if token in said]


def _prompt(
    row: dict[str, Any] | Rejection, data: DataConfig, given: bool, control: Sequence[str]
) -> TrainingPrompt | Rejection:
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
    if data.control_tokens == "reject" and (found := written(messages, control)):
        return Rejection("control_tokens", ", ".join(found))
    key = prompt_key(messages, tools)
    category = row.get("category")
    # A category is shown and counted, never tokenised, so that a text that cannot be written may lose a character.
    shown = None if category is None else str(category).encode(errors="replace").decode()
    return TrainingPrompt(key, split_of(key, data.heldout, data.benchmark), shown, messages, tools)


def _subset(rows: Sequence[TrainingPrompt], limit: int | None) -> list[TrainingPrompt]:
    """The ``limit`` rows whose salted key hashes lowest, in their order; growing the limit only adds rows.

    Salted, because the split is the key's own order: the lowest keys are all of one split.
    """
    if limit is None or len(rows) <= limit:
        return list(rows)
    chosen = sorted(rows, key=lambda prompt: hashlib.sha256(b"subset" + prompt.key.encode()).digest())[:limit]
    keys = {prompt.key for prompt in chosen}
    return [prompt for prompt in rows if prompt.key in keys]
