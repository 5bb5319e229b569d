"""What vLLM is given: DSpark and DFlash native, Eagle3 with taps that count hidden states."""

from pathlib import Path

import pytest
from tiny_exports import make, saved

from stages.export.source import facts_of
from stages.export.vllm import plan, serve


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("dspark", "Qwen3DSparkModel"), ("dflash_fill_in", "DFlashDraftModel"),
        ("eagle3_llama", "LlamaForCausalLMEagle3"), ("eagle3", "Eagle3Qwen3ForCausalLM"),
    ],
)  # fmt: skip
def test_the_architecture_that_vllm_loads(tmp_path: Path, name: str, architecture: str) -> None:
    assert plan(saved(name, tmp_path)[1]).config["architectures"] == [architecture]


def test_eagle3_counts_hidden_states(tmp_path: Path) -> None:
    config = plan(saved("eagle3_llama", tmp_path)[1]).config
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3] and "eagle_config" not in config


def test_eagle3_with_a_qwen3_layer_is_vllms_own(tmp_path: Path) -> None:
    layout = plan(saved("eagle3", tmp_path)[1])
    assert layout.config["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2, 3, 4]
    assert layout.config["num_aux_hidden_states"] == 5 and layout.config["norm_before_residual"] is False
    assert "layers.0.self_attn.q_norm.weight" in layout.tensors


@pytest.mark.parametrize(
    ("name", "kind", "runner"),
    [
        ("dspark", "dspark", "VLLM_USE_V2_MODEL_RUNNER=1 "),
        ("dflash_fill_in", "dflash", ""),
        ("eagle3", "eagle3", ""),
    ],
)
def test_the_command(name: str, kind: str, runner: str) -> None:
    options = f'{{"method": "{kind}", "model": "there", "num_speculative_tokens": 7}}'
    assert serve(facts_of(make(name).config), "org/target", "there") == [
        f"{runner}vllm serve org/target --speculative-config '{options}'"
    ]
