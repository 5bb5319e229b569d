import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from tiny_errors import refused
from transformers import AutoModelForCausalLM

from pipeline.config import ConfigError
from pipeline.target.files import identity, parameter_count
from pipeline.target.model import Target
from pipeline.target.tensors import check_same, load_layers, load_tensors

PT = {"format": "pt"}


@pytest.fixture(scope="module")
def target(target_folder: Path) -> Target:
    return Target.load(tiny.located(target_folder), taps=[-1, 0, 2, 3])


def copy_of(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to / "copy")
    return to / "copy"


def test_tensors_are_those_of_the_model(target: Target, target_folder: Path) -> None:
    """Pitfall 25: embedding and head bit-equal to the target's."""
    tensors = load_tensors(tiny.located(target_folder))
    assert torch.equal(tensors.embedding, target.model.get_input_embeddings().weight)
    assert torch.equal(tensors.head, target.model.get_output_embeddings().weight)
    assert not torch.equal(tensors.head, tensors.embedding)
    assert torch.equal(tensors.final_norm, target.model.model.norm.weight)
    assert (tensors.config.hidden_size, tensors.folder) == (32, target_folder)


def test_tensors_come_in_the_targets_dtype(target_folder: Path) -> None:
    tensors = load_tensors(tiny.located(target_folder, dtype="bfloat16"))
    model = Target.load(tiny.located(target_folder, dtype="bfloat16"), taps=[0]).model
    assert tensors.head.dtype == torch.bfloat16
    assert torch.equal(tensors.head, model.get_output_embeddings().weight)


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    """Pitfall 25: the head was random because the tie flag was ignored."""
    folder = tiny.save_target(tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    tensors = load_tensors(tiny.located(folder))
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(tensors.head, tensors.embedding)
    assert tensors.head.data_ptr() != tensors.embedding.data_ptr(), "safetensors cannot write shared memory"
    assert torch.equal(tensors.head, model.get_output_embeddings().weight)


def test_a_tie_flag_that_the_file_contradicts_is_read_as_the_model_reads_it(
    target_folder: Path, tmp_path: Path
) -> None:
    folder = copy_of(target_folder, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(load_tensors(tiny.located(folder)).head, model.get_output_embeddings().weight)


def test_a_missing_head_is_an_error_and_never_made_up(target_folder: Path, tmp_path: Path) -> None:
    folder = copy_of(target_folder, tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with refused(ConfigError, folder, "lm_head.weight"):
        load_tensors(tiny.located(folder))


def test_layers_by_their_names_inside_the_layer(target: Target, target_folder: Path) -> None:
    layers = load_layers(tiny.located(target_folder), [3, 1])
    assert list(layers) == [3, 1]
    expected = target.model.model.layers[1].state_dict()
    assert sorted(layers[1]) == sorted(expected)
    assert all(torch.equal(layers[1][name], expected[name]) for name in expected)
    with refused(ConfigError, target_folder, 4):
        load_layers(tiny.located(target_folder), [4])


def split(folder: Path, names: list[str], parts: int = 2) -> None:
    """Write the one file of ``folder`` as an index with ``parts`` shards of the tensors ``names``."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    where = {name: f"model-{1 + i % parts:05}-of-{parts:05}.safetensors" for i, name in enumerate(names)}
    for file in set(where.values()):
        save_file({name: weights[name] for name in names if where[name] == file}, folder / file, PT)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def test_a_shard_of_an_older_save_is_ignored(target_folder: Path, tmp_path: Path) -> None:
    """It was merged by name and won: the draft trained as usual and was never accepted."""
    folder = copy_of(target_folder, tmp_path)
    split(folder, sorted(load_file(folder / "model.safetensors")))
    before = identity(folder), parameter_count(folder)
    older = {name: value + 1 for name, value in load_file(target_folder / "model.safetensors").items()}
    save_file(older, folder / "model-00003-of-00003.safetensors", PT)
    tensors, layers = load_tensors(tiny.located(folder)), load_layers(tiny.located(folder), [0])
    expected = load_file(target_folder / "model.safetensors")
    assert torch.equal(tensors.head, expected["lm_head.weight"])
    assert torch.equal(tensors.final_norm, expected["model.norm.weight"])
    assert torch.equal(layers[0]["mlp.up_proj.weight"], expected["model.layers.0.mlp.up_proj.weight"])
    assert (identity(folder), parameter_count(folder)) == before


def test_what_the_index_lists_and_is_not_there_is_named(target_folder: Path, tmp_path: Path) -> None:
    folder = copy_of(target_folder, tmp_path)
    split(folder, sorted(load_file(folder / "model.safetensors")))
    shard = folder / "model-00001-of-00002.safetensors"
    save_file({"other": torch.zeros(1)}, shard, PT)
    with refused(ConfigError, "lm_head.weight", shard.name):
        load_tensors(tiny.located(folder))
    shard.unlink()
    with refused(ConfigError, "lm_head.weight", shard.name):
        Target.load(tiny.located(folder), [0])


def test_a_tensor_that_the_model_needs_and_no_file_has_is_never_made_up(
    target_folder: Path, tmp_path: Path
) -> None:
    """transformers fills it with random numbers, and warns where nobody reads it."""
    folder, name = copy_of(target_folder, tmp_path), "model.layers.1.mlp.up_proj.weight"
    weights = load_file(folder / "model.safetensors")
    del weights[name]
    save_file(weights, folder / "model.safetensors", PT)
    with refused(ConfigError, folder, name):
        Target.load(tiny.located(folder), [0])


def test_the_head_of_an_mtp_layer_is_not_the_targets(target_folder: Path, tmp_path: Path) -> None:
    """It has its own embedding and head under names that end alike, and comes first by name."""
    folder = copy_of(target_folder, tmp_path)
    weights = load_file(folder / "model.safetensors")
    mtp = {"a.lm_head.weight": "lm_head.weight", "a.embed_tokens.weight": "model.embed_tokens.weight"}
    save_file(weights | {new: weights[old] + 1 for new, old in mtp.items()}, folder / "model.safetensors", PT)
    tensors = load_tensors(tiny.located(folder))
    assert torch.equal(tensors.head, weights["lm_head.weight"])
    assert torch.equal(tensors.embedding, weights["model.embed_tokens.weight"])


def test_tensors_that_are_not_the_loaded_models_are_named(target: Target, target_folder: Path) -> None:
    tensors = load_tensors(tiny.located(target_folder))
    check_same(target, tensors)
    for name in ("embedding", "head", "final_norm"):
        other = dataclasses.replace(tensors, **{name: getattr(tensors, name) * 1.01})
        with refused(ConfigError, target_folder, name):
            check_same(target, other)


# --- quantised tensors ---


def in_fp8(weights: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """The tensors that stand for ``name`` in blocks of 16 x 16, as DeepSeek's files have them."""
    rows, columns = weights[name].shape
    blocks = weights[name].unflatten(1, (-1, 16)).unflatten(0, (-1, 16))  # [R, 16, C, 16]
    scale = blocks.abs().amax((1, 3)) / 448
    stored = (blocks / scale[:, None, :, None]).reshape(rows, columns).to(torch.float8_e4m3fn)
    return {name: stored, f"{name}_scale_inv": scale}


def quantised(folder: Path, name: str, **config: object) -> torch.Tensor:
    """Store the tensor ``name`` of ``folder`` in fp8 and tell ``config``; returns the tensor as it was."""
    weights = load_file(folder / "model.safetensors")
    save_file(weights | in_fp8(weights, name), folder / "model.safetensors", PT)
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(told | config))
    return weights[name]


def test_a_head_in_fp8_is_read_with_its_scale(target_folder: Path, tmp_path: Path) -> None:
    """Cast without it, its rows are hundreds of times too large."""
    folder = copy_of(target_folder, tmp_path)
    fp8 = {"quant_method": "fp8", "weight_block_size": [16, 16], "modules_to_not_convert": ["model"]}
    head = quantised(folder, "lm_head.weight", quantization_config=fp8)
    got = load_tensors(tiny.located(folder)).head
    assert got.dtype == torch.float32
    assert torch.allclose(got, head, rtol=0.07, atol=float(head.abs().max()) / 400)


@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.3.self_attn.q_proj.weight"])
def test_a_tensor_in_fp8_without_a_word_in_the_config_is_refused(
    target_folder: Path, tmp_path: Path, name: str
) -> None:
    folder = copy_of(target_folder, tmp_path)
    quantised(folder, name)
    for load in (load_tensors, lambda cfg: load_layers(cfg, [3])):
        with refused(ConfigError, folder, name):
            load(tiny.located(folder))


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors"])
def test_a_packed_head_is_refused_by_name_and_a_plain_one_beside_packed_layers_is_read(
    target_folder: Path, tmp_path: Path, method: str
) -> None:
    folder = copy_of(target_folder, tmp_path)
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(told | {"quantization_config": {"quant_method": method, "bits": 4, "group_size": 16}})
    )
    weights = load_file(folder / "model.safetensors")
    assert torch.equal(load_tensors(tiny.located(folder)).head, weights["lm_head.weight"])
    packed = {f"lm_head.{part}": torch.zeros(32, 34, dtype=torch.int32) for part in ("qweight", "qzeros")}
    del weights["lm_head.weight"]
    save_file(weights | packed, folder / "model.safetensors", PT)
    with pytest.raises(ConfigError, match=f"{re.escape(str(folder))}.*(lm_head|{method}|optimum|gptqmodel)"):
        load_tensors(tiny.located(folder))
