"""Folders whose files were made to do harm: each is one clear error, at once and before anything is allocated."""

import json
import os
from pathlib import Path

import pytest
import tiny
from tiny_errors import refused

from data_specs.manifest import ManifestError, read_json
from pipeline.drafts.folders import checkpoint
from pipeline.drafts.folders.fields import CheckpointError, check_fields


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checkpoint.save(tiny.draft("dspark"), tmp_path)
    return tmp_path


def edit(folder: Path, **changes: object) -> None:
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | changes))


@pytest.mark.parametrize("read", [checkpoint.read, checkpoint.load])
@pytest.mark.parametrize(
    "changes,named",
    [
        ({"num_hidden_layers": 100_000, "layer_types": None}, ["num_hidden_layers", 1000, 100_000]),
        ({"markov_rank": 10**9}, ["markov_rank", 10**9]),
        ({"markov_rank": 10**7}, ["confidence_head.proj.weight", "(1, 10000032)"]),
        ({"vocab_size": 10**7}, ["(10000000, 32)"]),
        ({"hidden_size": "32"}, ["hidden_size", "'32'"]),
        ({"hidden_size": True}, ["hidden_size", "True"]),
        ({"hidden_size": -32}, ["hidden_size", -32]),
        ({"hidden_size": 32.0}, ["hidden_size", "32.0"]),
        ({"num_attention_heads": 0}, ["num_attention_heads", 0]),
        ({"architectures": "Qwen3DSparkModel"}, ["architectures", "'Qwen3DSparkModel'"]),
        ({"architectures": [{}]}, ["architectures", "[{}]"]),
        ({"target_layer_ids": 3}, ["target_layer_ids", 3]),
        ({"target_layer_ids": [[0]]}, ["target_layer_ids", "[[0]]"]),
        ({"layer_types": {"a": 1}}, ["layer_types", "{'a': 1}"]),
        ({"layer_types": ["magic_attention"] * 2}, ["config.json", "layer_types"]),
        ({"model_type": ["qwen3"]}, ["model_type", "['qwen3']"]),
        ({"markov_head_type": {}}, ["markov_head_type", "{}"]),
        ({"sample_from_anchor": "no"}, ["sample_from_anchor", "'no'"]),
        ({"rms_norm_eps": float("nan")}, ["rms_norm_eps", "nan"]),
        ({"rms_norm_eps": []}, ["rms_norm_eps", "[]"]),
        ({"hidden_act": "magic"}, ["config.json", "magic"]),
        ({"rope_parameters": {"rope_type": "magic", "rope_theta": 1e4}}, ["config.json", "magic"]),
        ({"rope_parameters": {"rope_theta": "x"}}, ["rope_parameters.rope_theta", "'x'"]),
        ({"dflash_config": 7}, ["dflash_config", 7]),
        ({"speculators_model_type": 7}, ["speculators_model_type", 7]),
        (
            {"speculators_config": {"proposal_methods": [{"speculative_tokens": "7"}]}},
            ["speculators_config.proposal_methods.speculative_tokens", "'7'"],
        ),
    ],
)
def test_fields_are_checked_before_anything_is_made(folder: Path, read, changes: dict, named: list) -> None:
    edit(folder, **changes)
    with refused(CheckpointError, *named):
        read(folder)


def test_a_field_without_a_value_is_absent(tmp_path: Path) -> None:
    check_fields(tmp_path, {"hidden_size": None, "of_another_project": object()})


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_only_regular_files_are_read(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with refused(CheckpointError, name):
        checkpoint.load(folder)
    with refused(ManifestError, folder / name):
        read_json(folder / name)


def test_a_config_of_many_brackets(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 200_000)
    with refused(CheckpointError, "config.json"):
        checkpoint.load(folder)
