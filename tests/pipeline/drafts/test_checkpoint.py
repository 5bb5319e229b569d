import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from pipeline.drafts import checkpoint
from pipeline.drafts.checkpoint import CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checkpoint.save(tiny.draft(), tmp_path)
    return tmp_path


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not ...}))


def edit_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, value in changes.items():
        tensors[name.replace("__", ".")] = value
    save_file({k: v for k, v in tensors.items() if v is not None}, folder / "model.safetensors")


def test_load_gives_back_the_bits(folder: Path) -> None:
    expected, got = tiny.draft().state_dict(), checkpoint.load(folder).state_dict()
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_config_says_which_slot_predicts_what(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["sample_from_anchor"] is True and config["dspark_bonus_anchor"] is False
    assert config["architectures"] == ["Qwen3DSparkModel"] and config["model_type"] == "qwen3"
    assert config["target_layer_ids"] == [0, 2] and config["mask_token_id"] == 260


def test_trainable_tensors_take_the_asked_type_and_frozen_ones_keep_their_bits(tmp_path: Path) -> None:
    draft = tiny.draft()
    checkpoint.save(draft, tmp_path, torch.bfloat16)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors["fc.weight"].dtype == torch.bfloat16
    assert torch.equal(tensors["lm_head.weight"], draft.lm_head.weight)


def test_embedding_and_head_may_be_the_targets(folder: Path) -> None:
    draft = tiny.draft()
    edit_tensors(folder, embed_tokens__weight=None, lm_head__weight=None)
    target = SimpleNamespace(embedding=draft.embed_tokens.weight.data, head=draft.lm_head.weight.data)
    loaded = checkpoint.load(folder, target)
    assert torch.equal(loaded.lm_head.weight, draft.lm_head.weight)
    with pytest.raises(CheckpointError, match="tensor embed_tokens.weight .* is missing"):
        checkpoint.load(folder)


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"fc__weight": None}, r"tensor fc.weight \(32, 64\) is missing"),
        ({"extra__weight": torch.ones(2)}, "tensor extra.weight is not part of this draft"),
        ({"norm__weight": torch.ones(31)}, r"tensor norm.weight: expected shape \(32,\), got \(31,\)"),
        (
            {"markov_head__markov_w2__weight": torch.zeros(272, 8)},
            "tensor markov_head.markov_w2.weight is all zero",
        ),
    ],
)
def test_damaged_tensors_are_named(folder: Path, changes: dict, message: str) -> None:
    """Pitfalls 25 and 43: a draft that loads and accepts nothing."""
    edit_tensors(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        checkpoint.load(folder)


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"target_layer_ids": ...}, "field target_layer_ids is missing"),
        ({"mask_token_id": 272}, "field mask_token_id: expected a row below 272, got 272"),
        (
            {"architectures": ["LlamaForCausalLM"]},
            "field architectures: expected one of .*, got LlamaForCausalLM",
        ),
        ({"sample_from_anchor": False}, "field sample_from_anchor: expected true"),
        ({"markov_head_type": "rnn"}, "field markov_head_type: expected vanilla, got rnn"),
    ],
)
def test_damaged_config_is_named(folder: Path, changes: dict, message: str) -> None:
    edit_config(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        checkpoint.load(folder)


def test_truncated_weights_are_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="model.safetensors: expected a safetensors file"):
        checkpoint.load(folder)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a draft folder with config.json, found none"):
        checkpoint.load(tmp_path / "none")
