"""Fronts and checks of a study, on entries written by hand; a small pool simulated for the checks."""

import numpy as np
import pytest

from data_specs.results.records import to_json
from data_specs.results.study import LoadMetrics, RealPoint, StudyFacts
from data_specs.sps import locate, read_table
from pipeline.config import StudyConfig
from stages.study.points import arms
from stages.study.result import checks, falls, fronts, result_of
from stages.study.simulation import RecordedAnswer

NONE = dict.fromkeys(
    ("speed_p50", "speed_p95", "accepted_length", "acceptance", "ttft_p50", "ttft_p95", "requests")
)


def entry(policy: str, concurrency: int, speed: float, throughput: float, budget: float = 1.0) -> RealPoint:
    shares = {f"{part}_share": 0.2 for part in ("prefill", "draft", "schedule", "verify", "idle")}
    found = LoadMetrics(
        tokens=1, seconds=1, steps=1, speed=speed, throughput=throughput, budget=budget, **shares, **NONE
    )
    return RealPoint(
        policy=policy, concurrency=concurrency, metrics=found, repeats=1, throughputs=[throughput]
    )


ENTRIES = [
    entry("plain", 1, 10.0, 10.0), entry("plain", 8, 9.0, 70.0),
    entry("fixed_1", 1, 20.0, 20.0, 2.0), entry("fixed_1", 8, 7.0, 50.0, 2.0),
    entry("algorithm_1", 1, 19.0, 19.0, 2.0), entry("algorithm_1", 8, 8.0, 60.0, 1.5),
]  # fmt: skip


def test_fronts_by_policy() -> None:
    assert to_json(fronts(ENTRIES, [8.0, 15.0])) == {
        "points": {
            "plain": [[9.0, 70.0], [10.0, 10.0]], "fixed_1": [[7.0, 50.0], [20.0, 20.0]],
            "algorithm_1": [[8.0, 60.0], [19.0, 19.0]],
        },
        "sla": {
            "plain": {"8": 70.0, "15": None},
            "fixed_1": {"8": pytest.approx(50 - 30 / 13), "15": pytest.approx(50 - 240 / 13)},
            "algorithm_1": {"8": 60.0, "15": pytest.approx(60 - 41 * 7 / 11)},
        },
    }  # fmt: skip


def test_checks() -> None:
    found = checks(ENTRIES, drafts=1)
    assert list(found) == ["algorithm_1"]
    assert to_json(found["algorithm_1"]) == {
        "against": ["fixed_1"], "shortfall": pytest.approx(0.05), "limit": 0.02, "holds": False,
        "same_load": pytest.approx(0.05), "plain_ahead_from": 8, "budgets": [[1, 2.0], [8, 1.5]],
        "budget_falls": True,
    }  # fmt: skip


def test_what_falls() -> None:
    assert falls([3.0, 3.05, 1.0]) and falls([1.0])
    assert not falls([3.0, 3.1, 1.0]) and not falls([2.0, 2.0])


def answers(count: int) -> list[RecordedAnswer]:
    """A head whose confidences are the very probabilities that its drafts hold."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        likely = np.clip(rng.beta(3, 1.5) + rng.normal(0, 0.2, (40, 7)), 0.02, 0.98)
        held = (rng.random((40, 7)) < likely).cumprod(1).sum(1)
        made.append(RecordedAnswer(20, 41, likely, held))
    return made


def test_with_true_confidences_the_scheduler_is_nowhere_below_the_best_fixed_length() -> None:
    """The issue's check, on the H100 table: within 2 % of the best of all lengths, a budget that falls with load."""
    study = StudyConfig(policies=["algorithm_1"], simulated_concurrencies=[2, 16, 64, 256, 1024])
    facts = StudyFacts(
        draft="d", target="t", sampler={}, benchmarks=[], max_new_tokens=41, device="cpu", dtype="float32",
        calibrated=True, drafts=7, policies=["algorithm_1"], threshold=0.5, seed=0, notes={}, prompts=48,
    )  # fmt: skip
    table = read_table(locate("h100_qwen3_4b"))
    result = result_of({}, answers(48), study, facts, arms(["algorithm_1"], 7, 0.5), [table])
    found = result.checks["h100_qwen3_4b"]["algorithm_1"]
    assert found.shortfall <= 0.02 and found.holds and found.budget_falls
    assert found.budgets[0][1] > 7 and found.budgets[-1][1] < 4
