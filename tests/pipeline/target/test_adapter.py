import json
import shutil
import sys
from pathlib import Path

import peft
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from tiny_errors import refused
from transformers import AutoModelForCausalLM

from pipeline.config import ConfigError
from pipeline.target.files import identity, load_tokenizer
from pipeline.target.location import locate
from pipeline.target.model import Target
from pipeline.target.tensors import check_same, load_tensors

IDS = torch.tensor([[72, 105, 33]])


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/draftline/targets"


def save_adapter(base: Path, folder: Path, seed: int = 0) -> Path:
    """A LoRA of rank 2 on the query projections and the head, with random weights."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    torch.manual_seed(seed)
    made = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    )
    made.save_pretrained(folder)
    return folder


def test_an_adapter_is_merged_once_and_is_part_of_the_identity(
    target_folder: Path, tmp_path: Path, cache: Path
) -> None:
    """It was ignored: the draft was trained for another model than the one that is served."""
    adapter = save_adapter(target_folder, tmp_path / "lora")
    cfg = tiny.located(target_folder, adapter=str(adapter))
    target, tensors = Target.load(cfg, [0]), load_tensors(cfg)
    base = AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32)
    expected = peft.PeftModel.from_pretrained(base, str(adapter))(input_ids=IDS).logits
    assert torch.allclose(target.model(input_ids=IDS).logits, expected, atol=1e-5)
    assert not torch.equal(tensors.head, load_tensors(tiny.located(target_folder)).head)
    check_same(target, tensors)
    assert locate(cfg) == target.folder
    assert [path.name for path in cache.iterdir()] == [target.folder.name]
    other = tiny.located(target_folder, adapter=str(save_adapter(target_folder, tmp_path / "lora2", seed=1)))
    assert len({identity(folder) for folder in (target_folder, target.folder, locate(other))}) == 3
    assert load_tokenizer(target.folder, cfg).chat_template == tiny.tokenizer().chat_template


def test_an_adapter_beside_its_base_is_asked_for_or_refused(target_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(target_folder, tmp_path / "both")
    save_adapter(target_folder, folder)
    with pytest.raises(ConfigError, match=f"target.adapter={folder}"):
        locate(tiny.located(folder))
    apart = save_adapter(target_folder, tmp_path / "apart")
    merged = [locate(tiny.located(folder, adapter=str(given))) for given in (folder, apart)]
    heads = [load_tensors(tiny.located(one)).head for one in merged]
    assert torch.equal(*heads)


def test_a_folder_with_an_adapter_alone_names_its_base(target_folder: Path, tmp_path: Path) -> None:
    adapter = save_adapter(target_folder, tmp_path / "lora")
    with refused(ConfigError, f"target.path={target_folder}", f"target.adapter={adapter}"):
        locate(tiny.located(adapter))


def test_an_adapter_that_does_not_fit_is_refused(target_folder: Path, tmp_path: Path, cache: Path) -> None:
    """peft warns of tensors that it has no place for, and goes on."""
    adapter = save_adapter(target_folder, tmp_path / "lora")
    weights = load_file(adapter / "adapter_model.safetensors")
    renamed = {name.replace("layers.0", "layers.9"): value for name, value in weights.items()}
    save_file(renamed, adapter / "adapter_model.safetensors")
    tensor = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
    with refused(ConfigError, f"target.adapter={adapter}", tensor):
        locate(tiny.located(target_folder, adapter=str(adapter)))
    assert not [path for path in cache.iterdir() if not path.name.startswith(".")]
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(ConfigError, match="adapter_model.safetensors"):
        locate(tiny.located(target_folder, adapter=str(adapter)))


def test_without_peft_the_package_is_named(
    monkeypatch: pytest.MonkeyPatch, target_folder: Path, tmp_path: Path
) -> None:
    adapter = save_adapter(target_folder, tmp_path / "lora")
    monkeypatch.setitem(sys.modules, "peft", None)
    with refused(ConfigError, "target.adapter", "peft"):
        locate(tiny.located(target_folder, adapter=str(adapter)))


def test_a_quantised_base_is_refused(target_folder: Path, tmp_path: Path) -> None:
    adapter = save_adapter(target_folder, tmp_path / "lora")
    base = shutil.copytree(target_folder, tmp_path / "base")
    told = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(told | {"quantization_config": {"quant_method": "fp8"}}))
    with refused(ConfigError, f"target.adapter={adapter}", base, "quantization_config"):
        locate(tiny.located(base, adapter=str(adapter)))
