"""``study.json``: policies under load, measured and simulated, with their fronts and checks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from data_specs.results.records import Omitted, read_record, write_record
from data_specs.results.summary import Sampler
from data_specs.study import RESULT


@dataclass(frozen=True, kw_only=True)
class StudyFacts:
    """What was studied, and how. ``notes`` says how each SPS table was made."""

    draft: str
    target: str
    sampler: Sampler
    benchmarks: list[str]
    max_new_tokens: int
    device: str
    dtype: str
    calibrated: bool
    drafts: int  # a block, at most
    policies: list[str]
    threshold: float
    seed: int
    notes: dict[str, str]
    prompts: int  # recorded answers that simulations replay


@dataclass(frozen=True, kw_only=True)
class LoadMetrics:
    """Figures of one run under load, which stages/study/metrics.py describes; None if nothing of the kind happened.

    Older studies lack ``steady`` and ``speed``.
    """

    tokens: float
    seconds: float
    steps: float
    throughput: float | None
    speed_p50: float | None
    speed_p95: float | None
    ttft_p50: float | None
    ttft_p95: float | None
    budget: float | None
    accepted_length: float | None
    acceptance: float | None
    requests: float | None
    prefill_share: float | None
    draft_share: float | None
    schedule_share: float | None
    verify_share: float | None
    idle_share: float | None
    steady: float | None = None
    speed: float | None = None


@dataclass(frozen=True, kw_only=True)
class LoadPoint:
    """A policy at one concurrency; ``metrics`` are means over the repeats."""

    policy: str
    concurrency: int
    metrics: LoadMetrics


@dataclass(frozen=True, kw_only=True)
class RealPoint(LoadPoint):
    """A point that was served."""

    repeats: int
    throughputs: list[float]  # tokens per second of each repeat


@dataclass(frozen=True, kw_only=True)
class SimulatedPoint(LoadPoint):
    """A point that was simulated with the costs of the SPS table ``sps``.

    ``data_specs.study.MACHINE`` stands for the costs that were timed beside the measured points: only such points have
    repeats.
    """

    sps: str
    arrival: float | None  # requests per second; None: all at once
    repeats: Omitted[int] = None
    throughputs: Omitted[list[float]] = None


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Measured and simulated throughput of a point; ``error`` is simulated / real - 1."""

    policy: str
    concurrency: int
    real: float
    simulated: float
    error: float


@dataclass(frozen=True)
class Fronts:
    """Each policy's Pareto front (tokens/s/user, tokens/s), and its tokens/s at each requested speed."""

    points: dict[str, list[tuple[float, float]]]
    sla: dict[str, dict[str, float | None]]


@dataclass(frozen=True, kw_only=True)
class Check:
    """How far a scheduler lies below the best of the lengths ``against``, and whether its budget falls with load."""

    against: list[str]
    shortfall: float  # of its front
    limit: float
    holds: bool
    budgets: list[tuple[int, float]]  # (concurrency, verified tokens per request)
    budget_falls: bool
    same_load: float  # largest share of throughput missed at equal load
    plain_ahead_from: int | None  # concurrency from which plain decoding serves more; None: none


@dataclass(frozen=True)
class StudyResult:
    """All of study.json. ``fronts`` are by system (``MEASURED`` or SPS table), ``checks`` by SPS table and policy."""

    facts: StudyFacts
    real: list[RealPoint]
    simulated: list[SimulatedPoint]
    prediction: list[Prediction]
    fronts: dict[str, Fronts]
    checks: dict[str, dict[str, Check]]


def write_study(folder: Path, result: StudyResult) -> None:
    """Write ``study.json`` into ``folder``, whole or not at all."""
    write_record(folder / RESULT, result)


def read_study(folder: Path) -> StudyResult:
    """The result in ``folder``; see ``read_record`` for the errors."""
    return read_record(folder / RESULT, StudyResult)
