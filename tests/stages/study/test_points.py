"""The policies of a study as the engine takes them, its points and its requests."""

import numpy as np
import pytest
from tiny_errors import refused

from data_specs.study import StudyError
from pipeline.config import StudyConfig
from pipeline.decoding.scheduler import StepRate
from pipeline.decoding.steps import Request
from stages.study.points import Arm, StudyPoint, arms, points, request_count, requests

RATE = StepRate(np.array([1.0, 1.0, 0.9, 0.8, 0.75, 0.6]))
CONFIDENCES = np.array([[0.9, 0.5], [0.6, 0.9]])


def test_policies_by_name() -> None:
    """``fixed`` is the longest there is."""
    names = ["plain", "fixed_1", "fixed", "threshold", "algorithm_1", "asynchronous"]
    assert arms(names, 7, 0.4) == [
        Arm("plain", 0), Arm("fixed_1", 1), Arm("fixed_7", 7), Arm("threshold", 7, 0.4), Arm("algorithm_1", 7, 0.4),
        Arm("asynchronous", 7, 0.4),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["fixed_0", "fixed_8"])
def test_a_length_that_the_draft_does_not_have_is_named(name: str) -> None:
    with refused(StudyError, "study.policies", name, 7):
        arms(["plain", name], 7, 0.5)


def test_what_schedules() -> None:
    assert Arm("plain", 0).policy(RATE) is None and Arm("fixed_2", 2).policy(RATE) is None
    lengths = {}
    for arm in arms(["threshold", "algorithm_1"], 2, 0.55):
        schedule = arm.policy(RATE)
        assert schedule is not None
        lengths[arm.name] = schedule(CONFIDENCES).tolist()
    assert lengths == {"threshold": [1, 2], "algorithm_1": [1, 2]}
    careful = Arm("threshold", 2, 0.95).policy(RATE)
    assert careful is not None and careful(CONFIDENCES).tolist() == [0, 0]


def test_every_run_of_the_asynchronous_form_begins_anew() -> None:
    """It remembers the step before."""
    arm = Arm("asynchronous", 2)
    first, second = arm.policy(RATE), arm.policy(RATE)
    assert first is not None and second is not None
    began = first(CONFIDENCES).tolist()
    after = [first(np.array([[0.01, 0.01], [0.01, 0.01]])).tolist() for _ in range(3)][-1]
    assert after == [0, 0] != began
    assert second(CONFIDENCES).tolist() == began


def test_repeats_lie_as_far_apart_as_can_be() -> None:
    study = StudyConfig(concurrencies=[1, 64], repeats=2)
    made = points(study, arms(["plain", "fixed_1"], 3, 0.5))
    assert [point.unit for point in made] == [
        "c0001-plain-0", "c0001-fixed_1-0", "c0064-plain-0", "c0064-fixed_1-0",
        "c0001-plain-1", "c0001-fixed_1-1", "c0064-plain-1", "c0064-fixed_1-1",
    ]  # fmt: skip
    assert made[3] == StudyPoint(Arm("fixed_1", 1), 64, 0)


def test_a_point_has_requests_for_every_slot_and_a_least_number() -> None:
    study = StudyConfig(requests_per_slot=3, least_requests=8)
    assert [request_count(study, concurrency) for concurrency in (1, 2, 3, 10)] == [8, 8, 9, 30]


def test_requests_ask_the_prompts_in_turn() -> None:
    assert requests([(1, 2), (3,)], 3, 9) == [
        Request(0, (1, 2), 9, 0.0), Request(1, (3,), 9, 0.0), Request(2, (1, 2), 9, 0.0),
    ]  # fmt: skip
