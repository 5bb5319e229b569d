"""The group ``evaluate``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import data_specs
from pipeline.config.data import DataConfig
from pipeline.config.drafter import DrafterConfig
from pipeline.config.rules import (
    EACH_ONCE,
    NOT_EMPTY,
    Count,
    DraftSampling,
    MinP,
    Rule,
    Share,
    Temperature,
    TopK,
    TopP,
)

OWN = "own"  # the benchmark of the prompts that data.benchmark holds back
# The name is part of file names and metrics, in which macro is the average.
NAME = Rule(
    "a name of letters, digits, - and _ (macro is taken)",
    lambda name: bool(re.fullmatch("(?!macro$)[A-Za-z0-9][A-Za-z0-9_-]*", name)),
)


def benchmark_names() -> list[str]:
    """The benchmarks that data_specs describes."""
    return sorted(path.stem for path in (Path(data_specs.__file__).parent / "benchmarks").glob("*.yaml"))


@dataclass
class EvaluateConfig:
    """Speculative decoding on benchmarks."""

    # files of data_specs/benchmarks without .yaml, names in ``files``, or own
    benchmarks: Annotated[list[Annotated[str, NAME]], EACH_ONCE] = field(default_factory=list)
    # benchmark -> file used instead of its Hub id (null: the Hub's); another name -> one's own prompts, as data.sources
    files: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(benchmark_names()))
    prompts: Count | None = None  # most prompts of a benchmark; None: all
    max_new_tokens: Count = 2048
    temperature: Temperature = 0.0
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    # what a draft proposes at a temperature above 0: a draw at that temperature, or its mode; both are lossless
    draft_sampling: DraftSampling = "target"
    threshold: Share = 0.0  # a block ends before the first slot with a lower confidence
    # fit temperatures of the confidences on held-out prompts; None: only if the draft has a confidence head and
    # the held-out prompts give enough rounds
    calibrate: bool | None = None
    calibration_prompts: Count = 64  # most prompts of the calibration, spread over data.sources
    sweep: bool = False  # also report what thresholds 0.0, 0.1 ... 0.9 would give
    baseline: bool = True  # decode the same prompts without the draft, in the same run
    bootstrap: Count = 1000
    batch: Count = 1  # prompts at a time; above 1 by the batched engine (pipeline/decoding/batched.py)
    chunk_prompts: Count = 4  # prompts of a unit of work, which ranks share and a rerun skips
    profile: bool = False  # also measure steps a second by tokens, SPS(B)
    profile_tokens: Count = 128  # Bmax: tokens of the largest step of the profile
    # positions of the context before a request's tokens, in the profile
    profile_contexts: Annotated[list[Count], NOT_EMPTY] = field(default_factory=lambda: [128, 512])
    profile_repeats: Count = 7

    def contradictions(self, drafter: DrafterConfig, data: DataConfig, steps: Sequence[str]) -> Iterator[str]:
        """Yield a message for each contradiction in ``evaluate``, or between it and ``drafter`` or ``data``."""
        if {"evaluate", "study", "compare"} & set(steps) and not self.benchmarks:
            yield "evaluate.benchmarks: expected at least one benchmark, got none"
        yield from self._unknown_prompts()
        if not drafter.confidence_head:
            if self.threshold > 0:
                yield "evaluate.threshold: expected 0 with drafter.confidence_head=false"
            for name in ("calibrate", "sweep"):
                if getattr(self, name):
                    yield f"evaluate.{name}=true: expected drafter.confidence_head=true"
        calibrates = drafter.confidence_head and self.calibrate is not False
        trained_here = "compare" in steps or {"train", "evaluate"} <= set(steps)
        if trained_here and OWN in self.benchmarks and data.benchmark == 0:
            yield f"data.benchmark=0: evaluate.benchmarks=[{OWN}] needs prompts that are held back from training"
        if calibrates and trained_here and data.heldout == 0:
            yield (
                "data.heldout=0: the calibration needs held-out prompts "
                "(evaluate.calibrate=false skips the calibration)"
            )

    def _unknown_prompts(self) -> Iterator[str]:
        known = [*benchmark_names(), OWN]
        for number, name in enumerate(self.benchmarks):
            if name not in known and not self.files.get(name):
                yield (
                    f"evaluate.benchmarks[{number}]: expected one of {', '.join(known)}, or a name whose prompts "
                    f"evaluate.files.{name} gives, got {name!r}"
                )
        for name, file in self.files.items():
            if file and name not in self.benchmarks:
                yield f"evaluate.files.{name}: no such name in evaluate.benchmarks={self.benchmarks}"
        if self.files.get(OWN):
            yield f"evaluate.files.{OWN}: {OWN} is what data.benchmark holds back; give these prompts another name"
