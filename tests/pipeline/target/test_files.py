import json
import shutil
from pathlib import Path

import pytest
import tiny
from safetensors.torch import load_file, save_file

from pipeline.config import ConfigError
from pipeline.target import files as targets
from pipeline.target.files import default_taps, end_ids, eos_ids, identity


@pytest.mark.parametrize(
    ("layers", "taps", "expected"),
    [
        (36, 5, [1, 9, 17, 25, 33]), (40, 5, [1, 10, 19, 28, 37]), (30, 5, [1, 8, 14, 20, 27]),
        (36, 3, [1, 17, 33]), (36, 1, [18]), (6, 5, [1, 2, 3]), (4, 5, [1]), (1, 5, [0]),
    ],
)  # fmt: skip
def test_default_taps(layers: int, taps: int, expected: list[int]) -> None:
    assert default_taps(layers, taps) == expected


def copy_of(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to / "copy")
    return to / "copy"


def test_identity_does_not_depend_on_the_place(target_folder: Path, tmp_path: Path) -> None:
    assert identity(copy_of(target_folder, tmp_path)) == identity(target_folder)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"]
)
def test_identity_covers_config_tokenizer_template(target_folder: Path, tmp_path: Path, name: str) -> None:
    """Pitfall 13."""
    folder = copy_of(target_folder, tmp_path)
    (folder / name).write_text((folder / name).read_text() + " ")
    assert identity(folder) != identity(target_folder)
    changed = targets.tokenizer_identity(folder) != targets.tokenizer_identity(target_folder)
    assert changed == (name in ("tokenizer.json", "chat_template.jinja"))


def test_identity_notices_weights_written_over_the_old_ones(target_folder: Path, tmp_path: Path) -> None:
    folder = copy_of(target_folder, tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.2.mlp.up_proj.weight"] *= 1.001
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert identity(folder) != identity(target_folder)


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [7, 8]}, {"eos_token_id": 1}, (7, 8, 1)),
        ({"eos_token_id": 7}, {"eos_token_id": 7}, (7,)),
        ({}, {"eos_token_id": 1}, (1,)),
        (None, {"text_config": {"eos_token_id": [3, 4]}}, (3, 4)),
    ],
)
def test_eos_ids(tmp_path: Path, generation: dict | None, config: dict, expected: tuple[int, ...]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert eos_ids(tmp_path) == expected


def test_no_eos_anywhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="eos_token_id"):
        eos_ids(tmp_path)


def test_the_end_of_a_turn_ends_an_answer_whatever_the_generation_config_says(tmp_path: Path) -> None:
    """<|im_end|> (258) is what the template writes; the generation config names <|endoftext|> (256) alone."""
    folder = tiny.save_target(tmp_path / "target", eos_token_id=256)
    assert eos_ids(folder) == (256,)
    assert set(end_ids(folder, tiny.tokenizer())) == {256, 258}
