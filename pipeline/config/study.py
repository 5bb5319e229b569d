"""The group ``study``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pipeline.config.rules import EACH_ONCE, Count, Positive, Rule, Share, at_least

Policy = Annotated[
    str,
    Rule(
        "plain, fixed (the longest chain), fixed_N, threshold, algorithm_1 or asynchronous",
        lambda name: re.fullmatch(r"plain|fixed(_\d+)?|threshold|algorithm_1|asynchronous", name) is not None,
    ),
]


@dataclass
class StudyConfig:
    """Measures and simulates policies under load (stage=study); ``evaluate`` gives the prompts and the sampler."""

    in_chain: bool = False  # stage=all ends with a study of the policies that its draft supports
    policies: Annotated[list[Policy], EACH_ONCE] = field(default_factory=list)
    threshold: Share = 0.5  # the policy threshold verifies only drafts of at least this confidence
    calibrated: bool = True  # use the draft's calibration.json, which stage=evaluate makes
    max_new_tokens: Annotated[int, at_least(2)] = 64  # of a request
    # numbers of concurrent requests that are really served
    concurrencies: Annotated[list[Count], EACH_ONCE] = field(default_factory=list)
    requests_per_slot: Count = 3  # a point has this many requests for each concurrent one ...
    least_requests: Count = 8  # ... and at least
    repeats: Count = 1  # of every point, spread over the run because a machine's speed drifts
    # tokens of the longest request in the timings around each point
    timing_tokens: Annotated[int, at_least(8)] = 32
    simulate: bool = True  # predict the measured points, and simulate the machines of ``sps``
    sps: list[str] = field(default_factory=list)  # tables of data_specs/sps, or files
    simulated_concurrencies: Annotated[list[Count], EACH_ONCE] = field(default_factory=list)
    simulated_requests_per_slot: Count = 4
    simulated_prefill_tokens: Count = 8192  # prompt tokens a step
    arrivals: list[Positive] = field(
        default_factory=list
    )  # Poisson loads, as shares of the capacity with fixed drafts
    sla: list[Positive] = field(default_factory=lambda: [20.0, 40.0, 80.0])  # tokens/s/user

    def contradictions(self, steps: Sequence[str], calibrate: bool | None) -> Iterator[str]:
        """Yield a message for each thing that a study lacks.

        ``calibrate`` is ``evaluate.calibrate``, or None for a draft without confidences.
        """
        if "study" not in steps or (len(steps) > 1 and not self.in_chain):
            return
        needed = ["policies", "concurrencies"]
        if self.simulate and self.sps:
            needed.append("simulated_concurrencies")
        for name in needed:
            if not getattr(self, name):
                yield f"study.{name}: expected at least one (see conf/study), got none"
        if "evaluate" in steps and self.calibrated and calibrate is False:
            yield (
                "evaluate.calibrate=false: the study at the end of the chain schedules by calibrated confidences "
                "(study.calibrated=false takes the draft's own)"
            )
