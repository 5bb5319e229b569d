"""What SGLang is given: DSpark and DFlash native, Eagle3 with taps that count layers."""

from pathlib import Path

import pytest
from tiny_exports import make, saved

from stages.export.sglang import plan, serve
from stages.export.source import facts_of


def test_eagle3_counts_layers(tmp_path: Path) -> None:
    config = plan(saved("eagle3_llama", tmp_path)[1]).config
    taps = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True}
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["eagle_config"] == taps
    assert "eagle_aux_hidden_state_layer_ids" not in config


def test_block_drafts_are_native(tmp_path: Path) -> None:
    config = plan(saved("dspark_rnn", tmp_path)[1]).config
    assert (config["architectures"], config["markov_head_type"]) == (["Qwen3DSparkModel"], "rnn")
    assert config["target_layer_ids"] == [0, 2]


@pytest.mark.parametrize(
    ("name", "kind", "chain"),
    [
        ("dspark", "DSPARK", ""), ("dflash_fill_in", "DFLASH", ""),
        ("eagle3_llama", "EAGLE3", " --speculative-num-steps 7 --speculative-eagle-topk 1"),
    ],
)  # fmt: skip
def test_the_command_counts_the_anchor_too(name: str, kind: str, chain: str) -> None:
    assert serve(facts_of(make(name).config), "org/target", "there") == [
        f"python -m sglang.launch_server --model-path org/target --speculative-algorithm {kind} "
        f"--speculative-draft-model-path there{chain} --speculative-num-draft-tokens 8"
    ]
