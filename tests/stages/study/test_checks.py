"""What a study will need: policies of its draft, tables that are long enough, benchmarks."""

import dataclasses

import pytest
import tiny_study

from pipeline.config import StageConfig
from pipeline.preflight import Ahead
from stages.study.checks import checks


@pytest.fixture
def config(target_folder, tmp_path):
    made = tiny_study.config_of(target_folder, tmp_path)
    made.draft = str(tiny_study.draft_in(tmp_path / "tiny-draft", target_folder))
    return made


def first(ahead: Ahead) -> tuple[str, str]:
    check = checks(ahead)[0]
    return check.state, check.found


def test_policies_of_a_draft_that_is_there(config) -> None:
    assert first(Ahead(config)) == ("ok", "plain, fixed_1, algorithm_1")
    config.study.policies = ["fixed_99"]
    assert first(Ahead(config))[0] == "problem"


def test_policies_of_a_draft_that_is_still_to_be_trained(config) -> None:
    config.stage = StageConfig("all", ["cache", "train", "evaluate", "study"])
    assert checks(Ahead(config)) == [], "a chain without a study"
    config.study.in_chain = True
    config.drafter = dataclasses.replace(config.drafter, name="new", algorithm="dspark", block_size=2)
    ahead = Ahead(config).after("train")
    assert first(ahead) == ("ok", "plain, fixed_1, algorithm_1")
    config.study.policies = ["fixed_3"]
    assert first(ahead)[0] == "problem"
