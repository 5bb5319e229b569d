"""``comparison.json``: drafters trained alike, compared in one table and in figures over one key of the config."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from data_specs.results.records import read_record, write_record
from data_specs.results.summary import Figure, Sampler

RESULT, MARKDOWN = "comparison.json", "comparison.md"


@dataclass(frozen=True)
class ComparisonFacts:
    """Settings that all variants share."""

    target: str
    cache: str  # reference
    steps: int
    global_batch: int
    anchors: int
    seed: int
    sampler: Sampler
    max_new_tokens: int
    device: str
    dtype: str


@dataclass(frozen=True)
class TableRow:
    """Accepted length of each drafter on one benchmark, and its ratio to the first drafter's."""

    accepted_length: dict[str, Figure]
    ratio: dict[str, Figure]
    prompts: int


@dataclass(frozen=True)
class SpeedRow:
    """Macro averages of a drafter's costs and benefits."""

    acceptance_rate: Figure
    drafted_length: Figure
    draft_ms: Figure
    verify_ms: Figure
    tokens_per_second: Figure
    speedup: Figure


@dataclass(frozen=True)
class ComparisonTable:
    """One variant per drafter. ``order`` names the rows; with several benchmarks, the last is the macro average."""

    drafters: list[str]
    order: list[str]
    rows: dict[str, TableRow]
    prompts: int
    conditional: dict[str, list[Figure]]  # drafter -> by position
    speed: dict[str, SpeedRow]
    variants: dict[str, str]  # drafter -> name of its variant


@dataclass(frozen=True)
class StepShare:
    """Median milliseconds of a draft step and of its parallel pass, and the share that drafts from left to right."""

    draft_ms: float
    parallel_ms: float
    share: float


@dataclass(frozen=True)
class ComparisonFigure:
    """Accepted length of each drafter at every value of the key."""

    title: str
    key: str
    drafters: list[str]
    values: list[int]
    prompts: int
    accepted_length: dict[str, list[Figure]]
    variants: dict[str, list[str]]
    latency: dict[str, list[StepShare]] | None


@dataclass(frozen=True)
class VariantRecord:
    """One trained draft: its overrides, and where it and its evaluation are."""

    overrides: list[str]
    draft: str
    evaluation: str
    trainable: int
    steps: int
    heldout_length: float | None


@dataclass(frozen=True)
class ComparisonResult:
    """All of comparison.json. ``order`` and ``figure_order`` are as asked for: JSON objects have sorted keys."""

    facts: ComparisonFacts
    table: ComparisonTable
    figures: dict[str, ComparisonFigure]
    figure_order: list[str]
    variants: dict[str, VariantRecord]
    order: list[str]


def write_comparison(folder: Path, result: ComparisonResult) -> None:
    """Write ``comparison.json`` into ``folder``, whole or not at all."""
    write_record(folder / RESULT, result)


def read_comparison(folder: Path) -> ComparisonResult:
    """The comparison in ``folder``; see ``read_record`` for the errors."""
    return read_record(folder / RESULT, ComparisonResult)
