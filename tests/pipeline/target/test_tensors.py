import json
import shutil
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from pipeline.config import ConfigError
from pipeline.target.model import Target
from pipeline.target.tensors import load_layers, load_tensors


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
    with pytest.raises(ConfigError, match="lm_head.weight"):
        load_tensors(tiny.located(folder))


def test_the_text_decoder_inside_a_multimodal_model(target_folder: Path, tmp_path: Path) -> None:
    folder = copy_of(target_folder, tmp_path)
    weights = load_file(folder / "model.safetensors")
    nested = {name.replace("model.", "model.language_model."): tensor for name, tensor in weights.items()}
    nested["model.vision_tower.layers.0.mlp.fc1.weight"] = torch.zeros(2, 2)
    nested["model.vision_tower.norm.weight"] = torch.zeros(2)
    save_file(nested, folder / "model.safetensors", metadata={"format": "pt"})
    tensors, layers = load_tensors(tiny.located(folder)), load_layers(tiny.located(folder), [0])
    assert torch.equal(tensors.final_norm, weights["model.norm.weight"])
    assert "mlp.fc1.weight" not in layers[0]


def test_layers_by_their_names_inside_the_layer(target: Target, target_folder: Path) -> None:
    layers = load_layers(tiny.located(target_folder), [3, 1])
    assert list(layers) == [3, 1]
    expected = target.model.model.layers[1].state_dict()
    assert sorted(layers[1]) == sorted(expected)
    assert all(torch.equal(layers[1][name], expected[name]) for name in expected)
    with pytest.raises(ConfigError, match="decoder layer 4"):
        load_layers(tiny.located(target_folder), [4])


def test_quantised_layers_are_no_start_for_a_draft(tmp_path: Path) -> None:
    """Their scales are in other tensors, so a cast would start the draft at a wrong scale."""
    folder = tiny.save_target(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.3.self_attn.q_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"layers.3.self_attn.q_proj.weight.*torch.float8_e4m3fn"):
        load_layers(tiny.located(folder), [3])
