import pytest
from composing import accepted, composed, lacking, out_of_range, refusal

from pipeline.config import StudyConfig, section

CHAIN = ["cache", "train", "evaluate", "study"]


def test_defaults():
    assert section(StudyConfig()) == {
        "in_chain": False, "policies": [], "threshold": 0.5, "calibrated": True, "max_new_tokens": 64,
        "concurrencies": [], "requests_per_slot": 3, "least_requests": 8, "repeats": 1, "timing_tokens": 32,
        "simulate": True, "sps": [], "simulated_concurrencies": [], "simulated_requests_per_slot": 4,
        "simulated_prefill_tokens": 8192, "arrivals": [], "sla": [20.0, 40.0, 80.0],
    }  # fmt: skip


@pytest.mark.parametrize(
    "override",
    [
        "study.policies=['fixed', 'fixed']",
        "study.threshold=-0.1",
        "study.threshold=1.1",
        "study.max_new_tokens=1",
        "study.concurrencies=[2, 2]",
        "study.requests_per_slot=0",
        "study.least_requests=0",
        "study.repeats=0",
        "study.timing_tokens=7",
        "study.simulated_prefill_tokens=0",
    ],
)
def test_a_value_out_of_its_range_is_named(override: str):
    assert out_of_range(override) == override


@pytest.mark.parametrize(
    "key,value",
    [
        *[("policies", name) for name in ("fast", "fixed_", "fixed_x", "fixed_1_2", "Plain")],
        ("concurrencies", 0),
        ("simulated_concurrencies", 0),
        ("arrivals", 0.0),
        ("sla", 0.0),
    ],
)
def test_an_element_out_of_its_range_is_named(key: str, value: object):
    assert out_of_range(f"study.{key}=[{value}]") == f"study.{key}[0]={value}"


@pytest.mark.parametrize(
    "override",
    [
        "study.policies=['plain', 'fixed', 'fixed_12', 'threshold', 'algorithm_1', 'asynchronous']",
        "study.threshold=0.0",
        "study.threshold=1.0",
        "study.max_new_tokens=2",
        "study.concurrencies=[1]",
        "study.timing_tokens=8",
    ],
)
def test_the_ends_of_a_range_are_in_it(override: str):
    assert accepted(override) == override


@pytest.mark.parametrize("key", ["policies", "concurrencies", "simulated_concurrencies"])
def test_what_a_study_lacks_is_named(key: str):
    assert refusal("stage=study", f"study.{key}=[]").startswith(f"study.{key}:")
    assert composed("stage=all", f"study.{key}=[]")  # a chain has a study only where it is asked for


@pytest.mark.parametrize("override", ["study.simulate=false", "study.sps=[]"])
def test_only_machines_that_are_simulated_need_concurrencies(override: str):
    assert composed("stage=study", override, "study.simulated_concurrencies=[]")


def test_calibrated_confidences_in_a_chain_are_calibrated_in_it():
    keys = ["evaluate.calibrate=false", "study.calibrated"]
    assert lacking(refusal("experiment=quickstart", "evaluate.calibrate=false"), keys) == []
    assert composed("experiment=quickstart", "evaluate.calibrate=false", "study.calibrated=false")


@pytest.mark.parametrize(
    "steps,calibrate,keys",
    [
        (CHAIN, False, ["evaluate.calibrate=false"]),
        (CHAIN, True, []),
        (CHAIN, None, []),
        (["study"], False, []),
        (["evaluate"], False, []),
    ],
)
def test_only_a_chain_with_a_study_must_calibrate(steps: list[str], calibrate: bool | None, keys: list[str]):
    study = StudyConfig(in_chain=True, policies=["fixed"], concurrencies=[1])
    assert [message.split(":")[0] for message in study.contradictions(steps, calibrate)] == keys


def test_a_stage_without_a_study_lacks_nothing():
    assert list(StudyConfig(in_chain=True).contradictions(["evaluate"], None)) == []
