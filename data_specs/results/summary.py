"""``summary.json`` of an evaluation: what was evaluated, and the figures of every benchmark.

``Summary`` is of an evaluation in this process, and ``ServedSummary`` of a running server by its own counters.
pipeline/acceptance.py says how each metric is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from data_specs.manifest import read_json
from data_specs.results.records import Omitted, parse, write_record

SUMMARY, MARKDOWN = "summary.json", "summary.md"
Sampler = dict[str, float | int | str | None]


@dataclass(frozen=True)
class Figure:
    """A value and its 95 % bootstrap interval over prompts; either is None if it is not known."""

    value: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Metrics:
    """The figures of merit of one benchmark or of their macro average; lists are by position 1 ... K."""

    accepted_length: Figure
    acceptance_rate: Figure
    verify_rate: Figure
    drafted_length: Figure
    survival: list[Figure]
    conditional: list[Figure]
    draft_share: Figure
    verify_share: Figure
    draft_ms: Figure
    verify_ms: Figure
    tokens_per_second: Figure
    plain_tokens_per_second: Figure
    speedup: Figure
    same_answers: Figure


@dataclass(frozen=True)
class BenchmarkResult:
    """One benchmark. ``metrics`` is None if no prompt was answered.

    ``counts`` always has ``prompts`` and ``too_long``; ``finish`` counts the answers by their end, stop or length.
    """

    counts: dict[str, int]
    metrics: Metrics | None
    finish: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was evaluated, and how."""

    draft: str
    target: str
    sampler: Sampler  # the parameters that act: Sampler.effective()
    max_new_tokens: int
    thinking: bool | None
    device: str  # for a server: the engine and its version
    dtype: str
    prompts: dict[str, int]  # selected, by benchmark
    trained: Omitted[dict[str, int]] = None  # how many of them the draft was trained on; None: not known


@dataclass(frozen=True, kw_only=True)
class EvaluationFacts(Facts):
    """Facts of an evaluation in this process."""

    threshold: float
    batch: int = 1  # prompts at a time


@dataclass(frozen=True, kw_only=True)
class ServedFacts(Facts):
    """Facts of an evaluation of a running server."""

    server: str
    model: str
    plain_server: str | None
    plain_model: str | None
    note: str | None


@dataclass(frozen=True)
class ContextBucket:
    """Figures of the rounds whose context has ``first`` to ``after`` - 1 positions (``after`` None: no upper end)."""

    first: Annotated[int, Field(alias="from")]
    after: Annotated[int | None, Field(alias="to")]
    prompts: int
    rounds: int
    accepted_length: Figure
    acceptance_rate: Figure
    draft_ms: Figure
    verify_ms: Figure


@dataclass(frozen=True)
class PositionQuality:
    """Calibration quality of one position. Lists have one value for each of 20 bins, None for an empty bin."""

    rounds: int
    ece: float
    brier: float
    auc: float | None  # None: all outcomes are equal
    predicted: list[float | None]
    observed: list[float | None]
    counts: list[int]


@dataclass(frozen=True)
class CalibrationEffect:
    """The temperatures of a draft, and the quality of its confidences by position on the reported rounds."""

    prompts: int
    rounds: int
    data: str
    temperatures: list[float]
    before: list[PositionQuality]
    after: list[PositionQuality]


@dataclass(frozen=True)
class SweepRow:
    """Figures at one threshold. ``exact`` answers follow from the record; ``anew`` answers were decoded again."""

    threshold: float
    accepted: float
    rejected: float
    acceptance_rate: float | None
    accepted_length: float | None
    exact: int
    anew: int


@dataclass(frozen=True)
class Machine:
    """The hardware of a profile, without the names of hosts or users."""

    device: str
    cores: int | None
    threads: int
    torch: str
    dtype: str


@dataclass(frozen=True)
class VerifyTime:
    """Median seconds of a verification pass over ``tokens``, and the interval that holds 95 % of the repeats."""

    tokens: int
    seconds: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class DraftTime:
    """Median seconds of a draft pass for ``requests``, and the interval that holds 95 % of the repeats."""

    requests: int
    seconds: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class CostCurve:
    """Step times after ``context`` positions; ``fit`` is monotone and has one value for each of ``points``."""

    context: int
    points: list[VerifyTime]
    fit: list[float]
    draft: Omitted[list[DraftTime]] = None


@dataclass(frozen=True)
class Profile:
    """The costs of steps on this machine (pipeline/decoding/step_costs.py)."""

    machine: Machine
    block: int
    repeats: int
    contexts: list[CostCurve]


@dataclass(frozen=True, kw_only=True)
class BenchmarkResults:
    """All benchmarks, and their macro average. ``order`` is as asked for, because JSON objects have sorted keys."""

    order: list[str]
    benchmarks: dict[str, BenchmarkResult]
    macro: Metrics | None


@dataclass(frozen=True, kw_only=True)
class AnySummary(BenchmarkResults):
    """What evaluations in this process and of servers have in common; a section is None if it was not asked for."""

    facts: Facts
    positions: int  # drafts a round at most; 0: not known
    context: list[ContextBucket] = field(default_factory=list)
    calibration: CalibrationEffect | None = None
    calibration_refused: Omitted[str] = None  # why there is none, where one was planned
    sweep: list[SweepRow] | None = None
    profile: Omitted[Profile] = None


@dataclass(frozen=True, kw_only=True)
class Summary(AnySummary):
    """Summary of an evaluation in this process."""

    facts: EvaluationFacts


@dataclass(frozen=True)
class Promised:
    """The draft's own evaluation of the benchmarks that were served: fields of its manifest, and its summary."""

    reference: str
    created: str
    packages: dict[str, str]
    revision: str | None
    fingerprint: str
    summary: Summary


@dataclass(frozen=True)
class Served:
    """Facts that only an evaluation of a server has."""

    steps_told: bool  # whether the engine counts its verification steps
    past_end: int  # answers that went on after an end token of the target
    promised: Promised | None


@dataclass(frozen=True, kw_only=True)
class ServedSummary(AnySummary):
    """Summary of an evaluation of a running server; values that the engine does not report are None."""

    facts: ServedFacts
    served: Served


def write_summary(folder: Path, summary: Summary | ServedSummary) -> None:
    """Write ``summary.json`` into ``folder``, whole or not at all."""
    write_record(folder / SUMMARY, summary)


def read_summary(folder: Path) -> Summary | ServedSummary:
    """The summary in ``folder``: of a server if it has a section ``served``. See ``parse`` for the errors."""
    path = folder / SUMMARY
    values = read_json(path)
    served = isinstance(values, dict) and "served" in values
    return parse(values, ServedSummary, path) if served else parse(values, Summary, path)
