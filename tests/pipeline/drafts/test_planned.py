"""The draft that will be trained, before there is a cache: the same config and sizes as the real one."""

from pathlib import Path

import pytest
import tiny_cache
from tiny_errors import refused

from data_specs.errors import UserError
from pipeline.drafts.planned import planned_draft
from pipeline.preflight import Ahead
from pipeline.store.artifacts import Store
from stages.train import plan


@pytest.mark.parametrize("algorithm", list(tiny_cache.DRAFTERS))
def test_it_is_the_draft_that_is_trained_without_its_numbers(
    target_folder: Path, tmp_path: Path, algorithm: str
) -> None:
    config = tiny_cache.train_config(target_folder, tmp_path, algorithm)
    before = planned_draft(Ahead(config, frozenset({("cache", "tiny_chat")})))
    assert {parameter.device.type for parameter in before.parameters()} == {"meta"}
    real = plan.prepare(config, tiny_cache.make(Store(tmp_path), target_folder, [12, 9])).draft
    assert before.config.to_dict() == real.config.to_dict()
    assert {name: value.shape for name, value in before.named_parameters()} == {
        name: value.shape for name, value in real.named_parameters()
    }


def test_its_taps_are_those_of_a_cache_that_is_there(target_folder: Path, tmp_path: Path) -> None:
    config = tiny_cache.train_config(target_folder, tmp_path)
    tiny_cache.make(Store(tmp_path), target_folder, [12])
    config.target.taps = [1, 3]
    assert planned_draft(Ahead(config)).config.target_layer_ids == [0, 2]
    coming = Ahead(config).after("cache")
    assert planned_draft(coming).config.target_layer_ids == [1, 3]


@pytest.mark.parametrize(
    ("algorithm", "section", "key", "value"),
    [
        ("dspark", "target", "mask_token_id", 272),
        ("eagle3", "drafter", "vocab_size", 272),
        ("dspark", "drafter", "num_taps", 3),
        ("mtp", "train", "compile", True),
    ],
)
def test_what_the_target_does_not_have_is_refused(
    target_folder: Path, tmp_path: Path, algorithm: str, section: str, key: str, value: object
) -> None:
    config = tiny_cache.train_config(target_folder, tmp_path, algorithm)
    setattr(getattr(config, section), key, value)
    with refused(UserError, f"{section}.{key}"):
        planned_draft(Ahead(config))
