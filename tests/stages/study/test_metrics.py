import pytest

from data_specs.results.records import to_json
from pipeline.decoding.steps import Step, Times
from stages.study.metrics import metrics

STEPS = [
    #    began R  ctx drafted B acc out prompt seconds: prefill, draft, schedule, verify
    Step(0.0, 2, 10, 6, 6, 1, 5, 10, 1.0, 0.5, 0.25, 2.0),
    Step(4.0, 2, 13, 6, 4, 2, 4, 0, 0.0, 0.5, 0.25, 3.0),
    Step(8.0, 1, 9, 3, 2, 0, 2, 4, 0.5, 0.25, 0.25, 1.0),
]
TIMES = [
    Times(0, 4, 0.0, 0.0, 1.0, 7.75),
    Times(1, 5, 0.0, 0.0, 1.0, 7.75),
    Times(2, 2, 2.0, 8.0, 8.5, 10.0),
]


def test_figures_by_hand() -> None:
    found = to_json(metrics(STEPS, TIMES))
    expected = {
        "tokens": 11, "seconds": 10.0, "steps": 3, "throughput": 1.1, "requests": 5 / 3,
        "budget": 12 / 5, "acceptance": 3 / 7, "accepted_length": 8 / 5,
        "speed": 8 / 15, "speed_p50": 4 / 6.75, "speed_p95": 3 / 6.75 + 0.1 * (4 / 6.75 - 3 / 6.75),
        "ttft_p50": 1.0, "ttft_p95": 1.0 + 0.9 * 5.5,
        "prefill_share": 0.15, "draft_share": 0.125, "schedule_share": 0.075, "verify_share": 0.6, "idle_share": 0.05,
        "steady": 4 / 0.25,  # from 7.75 to 8.0 only the second step ends
    }  # fmt: skip
    assert found == pytest.approx(expected)


def test_steady_is_what_is_emitted_while_slots_are_refilled() -> None:
    steps = [Step(float(i), 2, 0, 0, 2, 0, 2, 0, 0, 0, 0, 1.0) for i in range(6)]
    times = [Times(0, 3, 0, 0, 0.5, 2.0), Times(1, 3, 0, 0, 0.5, 5.0), Times(2, 3, 0, 5.0, 5.5, 6.0)]
    assert metrics(steps, times).steady == 2.0  # seconds 2 to 5, six tokens


def test_what_cannot_be_told_is_none() -> None:
    found = to_json(
        metrics([Step(0.0, 0, 0, 0, 0, 0, 1, 3, 1.0, 0, 0, 0)], [Times(0, 1, 0.0, 0.0, 1.0, 1.0)])
    )
    names = (
        "steady",
        "speed",
        "speed_p50",
        "speed_p95",
        "budget",
        "acceptance",
        "accepted_length",
        "requests",
    )
    assert [found[name] for name in names] == [None] * 8
    assert found["throughput"] == 1.0
