import dataclasses
import json

import pytest
from composing import composed, lacking, out_of_range, refusal

from pipeline import __main__ as entry
from pipeline.config import Config, ConfigError, check, section, whole


def test_defaults_of_the_root():
    fields = section(Config())
    assert {name: value for name, value in fields.items() if not isinstance(value, dict)} == {
        "artifacts": "artifacts", "cache": None, "draft": None, "evaluation": None, "evaluations": [],
        "engine": None, "server": None, "plain_server": None, "ranks": None, "plan": False, "seed": 0,
    }  # fmt: skip
    assert section(composed("tracking=none").tracking) == {
        "mode": "none",
        "project": "draftline",
        "entity": None,
    }
    assert section(composed("stage=train").stage) == {"name": "train", "steps": ["train"]}


def test_every_step_of_a_stage_can_run():
    assert set(whole.STEPS) == set(entry.STEPS)


def test_a_section_is_plain_json_values():
    values = section(composed())
    assert json.loads(json.dumps(values)) == values
    assert values["drafter"]["loss"]["l1"] == 0.9


def test_a_value_that_must_be_given_is_named():
    assert refusal("target=hf").startswith("target.path:")
    assert refusal("data=local").startswith("data.sources:")


def changed(**changes: object) -> str:
    """The message about the default config with the root fields ``changes``."""
    with pytest.raises(ConfigError) as error:
        check(dataclasses.replace(composed(), **changes))  # type: ignore[arg-type]
    return str(error.value)


@pytest.mark.parametrize("changes", [{"ranks": 0}, {"seed": -1}, {"seed": 2**32}, {"engine": "sglang"}])
def test_a_root_key_out_of_its_range_is_named(changes: dict):
    ((key, value),) = changes.items()
    message = changed(**changes)
    assert lacking(message, [f"{key}: "]) == [] and message.endswith(f" got {value!r}")


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_the_ends_of_a_range_are_in_it(seed: int):
    check(dataclasses.replace(composed(), seed=seed, ranks=1))


def test_an_unknown_step_or_mode_is_named():
    assert out_of_range("stage.steps=[train,trian]") == "stage.steps[1]=trian"
    assert out_of_range("tracking.mode=loud") == "tracking.mode=loud"


def test_all_contradictions_are_named_at_once():
    message = refusal("train.steps=1", "train.epochs=1", "drafter.markov_rank=0", "drafter.init.bigram=1.0")
    starts = [line.split(":")[0] for line in message.splitlines()[1:]]
    assert starts == ["  1. train.steps and train.epochs", "  2. drafter.init.bigram"]


def test_ranges_come_before_contradictions():
    assert refusal("train.steps=5", "evaluate.batch=0").startswith("evaluate.batch:")


# --- a running server decides by itself ------------------------------------------------------------------------


def served(**changes: object) -> Config:
    """The config of an evaluation of the server http://h:1, with the fields ``changes``; a dict: of ``evaluate``."""
    config = dataclasses.replace(composed("stage=evaluate"), engine="vllm", server="http://h:1")
    evaluate = dataclasses.replace(config.evaluate, **changes.pop("evaluate", {}))  # type: ignore[arg-type]
    return dataclasses.replace(config, evaluate=evaluate, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes,key",
    [
        ({"server": None}, "engine and server:"),
        ({"engine": None}, "engine and server:"),
        ({"plain_server": "http://h:1"}, "plain_server=http://h:1:"),
        ({"engine": None, "server": None, "plain_server": "http://h:2"}, "plain_server=http://h:2:"),
        ({"evaluate": {"baseline": False}, "plain_server": "http://h:2"}, "plain_server=http://h:2:"),
        ({"evaluate": {"profile": True}}, "evaluate.profile=true:"),
        ({"evaluate": {"threshold": 0.5}}, "evaluate.threshold:"),
        ({"evaluate": {"calibrate": True}}, "evaluate.calibrate=true:"),
        ({"evaluate": {"sweep": True}}, "evaluate.sweep=true:"),
        ({"evaluate": {"batch": 2}}, "evaluate.batch:"),
        ({"ranks": 2}, "ranks:"),
        ({"stage": composed("stage=train").stage}, "engine=vllm:"),
    ],
)
def test_contradictions_with_a_server_name_the_key(changes: dict, key: str):
    with pytest.raises(ConfigError) as error:
        check(served(**changes))
    assert lacking(str(error.value), [key]) == []


@pytest.mark.parametrize(
    "changes", [{}, {"plain_server": "http://h:2"}, {"ranks": 1}, {"evaluate": {"baseline": False}}]
)
def test_what_a_running_server_allows(changes: dict):
    check(served(**changes))


@pytest.mark.parametrize("name", ["a/../../../zz", "..", "/tmp/x", "a b", "-x", "", "x" * 101, "a\n"])
@pytest.mark.parametrize("group", ["target", "data", "drafter", "compare", "export"])
def test_a_name_makes_no_folder_elsewhere(group: str, name: str):
    config = composed()
    getattr(config, group).name = name
    with pytest.raises(ConfigError) as error:
        check(config)
    assert f"{group}.name: " in str(error.value) and repr(name) in str(error.value)
