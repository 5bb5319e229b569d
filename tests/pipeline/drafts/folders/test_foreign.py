"""Layouts of other projects. The configs are those of speculators 0.9.0, SpecForge 0.2.0 and engines' drafts."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from safetensors.torch import save_file
from tiny_errors import refused

from data_specs.errors import UserError
from pipeline.drafts.base import Blocks
from pipeline.drafts.folders import checkpoint
from pipeline.drafts.model import Model

BLOCKS = Blocks(torch.tensor([[4, 9]]), torch.ones(1, 2, dtype=torch.bool))
SHARED = ("embed_tokens.weight", "lm_head.weight")
LAYERS = {
    "attention_bias": False, "head_dim": 8, "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 64,
    "max_position_embeddings": 2048, "model_type": "qwen3", "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "vocab_size": 272, "tie_word_embeddings": False,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "layer_types": ["full_attention", "full_attention"],
}  # fmt: skip
LLAMA = {k: v for k, v in LAYERS.items() if k != "layer_types"} | {
    "model_type": "llama",
    "num_hidden_layers": 1,
}


@torch.no_grad()
def logits(draft: Model) -> torch.Tensor:
    """Logits of two blocks, including the part of the sequential head."""
    batch = tiny.batch([20], taps=len(draft.config.target_layer_ids))
    states = draft.eval().block_states(batch, BLOCKS)
    _, features = draft.head_inputs(batch, BLOCKS, states)
    return draft.logits(states) + (0 if features is None else draft.markov_head.bias(features))


def write(folder: Path, config: dict, tensors: dict[str, torch.Tensor]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")


def own(draft: Model) -> dict[str, torch.Tensor]:
    return {n: v for n, v in draft.state_dict().items() if n not in SHARED}


def target_of(draft: Model) -> SimpleNamespace:
    return SimpleNamespace(embedding=draft.embed_tokens.weight.data, head=draft.lm_head.weight.data)


def speculators(kind: str, drafts: int, **fields: object) -> dict:
    greedy = {
        "proposal_type": "greedy",
        "speculative_tokens": drafts,
        "accept_tolerance": 0.0,
        "verifier_accept_k": 1,
    }
    return {
        "architectures": ["DSparkDraftModel" if kind == "dspark" else "DFlashDraftModel"],
        "auto_map": {"": "config.DSparkSpeculatorConfig"},
        "speculators_model_type": kind, "speculators_version": "0.9.0", "draft_vocab_size": 272, "dtype": "float32",
        "aux_hidden_state_layer_ids": [1, 3], "mask_token_id": 260, "target_hidden_size": None,
        "sliding_window_non_causal": False, "transformer_layer_config": LAYERS,
        "speculators_config": {
            "algorithm": kind, "default_proposal_method": "greedy", "proposal_methods": [greedy],
            "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "org/target"},
        },
    } | fields  # fmt: skip


HEADS = {
    "markov_rank": 8, "markov_head_type": "vanilla", "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}  # fmt: skip


def test_speculators_dspark(tmp_path: Path) -> None:
    """Taps count hidden states. Embedding and head are the verifier's; old folders hold some of its tensors."""
    made = tiny.draft()
    config = speculators("dspark", 7, block_size=7, sample_from_anchor=True, **HEADS)
    write(tmp_path, config, own(made) | {"verifier_norm.weight": torch.ones(32)})
    loaded = checkpoint.load(tmp_path, target_of(made))
    assert loaded.config.target_layer_ids == [0, 2] and loaded.max_drafts == 7
    assert loaded.config.architectures == ["Qwen3DSparkModel"]
    assert torch.equal(logits(loaded), logits(made))


def test_speculators_dflash_is_fill_in(tmp_path: Path) -> None:
    made = tiny.draft("dflash", sample_from_anchor=False, block_size=8)
    write(tmp_path, speculators("dflash", 7, block_size=8, sample_from_anchor=False), own(made))
    loaded = checkpoint.load(tmp_path, target_of(made))
    assert loaded.max_drafts == 7 and torch.equal(logits(loaded), logits(made))


@pytest.mark.parametrize(
    "fields,named",
    [
        ({"sample_from_anchor": False}, ["sample_from_anchor=False", "speculative_tokens=7"]),
        ({"sample_from_anchor": None, "block_size": 9}, ["sample_from_anchor"]),
        ({"aux_hidden_state_layer_ids": None}, ["aux_hidden_state_layer_ids"]),
        ({"mask_token_id": 272}, ["mask_token_id", "272"]),
        ({"mask_token_id": None}, ["mask_token_id"]),
        ({"speculators_model_type": "peagle"}, ["speculators_model_type", "peagle"]),
        ({"transformer_layer_config": None}, ["transformer_layer_config"]),
        ({"target_hidden_size": 64}, ["target_hidden_size", "32", "64"]),
        (
            {
                "transformer_layer_config": LAYERS
                | {"layer_types": ["sliding_attention"] * 2, "sliding_window": 8}
            },
            ["sliding_window_non_causal"],
        ),
    ],
)
def test_speculators_that_say_too_little(tmp_path: Path, fields: dict, named: list) -> None:
    config = speculators("dspark", 7, block_size=7, sample_from_anchor=True, **HEADS) | fields
    write(tmp_path, config, own(tiny.draft()))
    with refused(UserError, "config.json", *named):
        checkpoint.read(tmp_path)


def test_speculators_without_the_flag_are_told_by_the_number_of_drafts(tmp_path: Path) -> None:
    for drafts, first in ((7, True), (6, False)):
        write(tmp_path, speculators("dspark", drafts, block_size=7, **HEADS), own(tiny.draft()))
        assert checkpoint.read_config(tmp_path).sample_from_anchor is first


def eagle3_tensors(made: Model) -> dict[str, torch.Tensor]:
    return {n.replace("layers.0.", "midlayer."): v for n, v in made.state_dict().items()}


EAGLE3 = LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 272}


def test_eagle3_in_the_reference_layout(tmp_path: Path) -> None:
    """If a config has no length, the draft makes the paper's seven steps."""
    made = tiny.draft("eagle3", family="llama")
    write(tmp_path, EAGLE3 | {"eagle_aux_hidden_state_layer_ids": [1, 3]}, eagle3_tensors(made))
    loaded = checkpoint.load(tmp_path)
    assert loaded.config.target_layer_ids == [0, 2] and loaded.max_drafts == 7
    assert torch.equal(logits(loaded), logits(made))


def test_eagle3_of_sglang_counts_layers(tmp_path: Path) -> None:
    made = tiny.draft("eagle3", family="llama")
    taps = {"eagle_aux_hidden_state_layer_ids": [0, 2], "use_aux_hidden_state": True}
    write(tmp_path, EAGLE3 | {"eagle_config": taps}, eagle3_tensors(made))
    assert checkpoint.load(tmp_path).config.target_layer_ids == [0, 2]


def test_eagle3_may_take_its_residual_after_the_norm(tmp_path: Path) -> None:
    made = tiny.draft("eagle3", family="llama")
    with torch.no_grad():
        made.layers[0].hidden_norm.weight.mul_(1.7)
    taps = {"eagle_aux_hidden_state_layer_ids": [1, 3]}
    write(tmp_path, EAGLE3 | taps | {"norm_before_residual": True}, eagle3_tensors(made))
    after = logits(checkpoint.load(tmp_path))
    assert not torch.allclose(after, logits(made))
    made.config.norm_before_residual = True
    assert torch.equal(after, logits(made))


def test_specforge_eagle3_has_tables_of_its_whole_vocabulary(tmp_path: Path) -> None:
    made = tiny.draft("eagle3", family="llama")
    tables = {"d2t": torch.zeros(272, dtype=torch.int64), "t2d": torch.ones(272, dtype=torch.bool)}
    write(tmp_path, EAGLE3 | {"eagle_aux_hidden_state_layer_ids": [1, 3]}, eagle3_tensors(made) | tables)
    assert torch.equal(logits(checkpoint.load(tmp_path)), logits(made))


@pytest.mark.parametrize(
    "fields,named",
    [
        ({}, ["eagle_aux_hidden_state_layer_ids"]),
        ({"norm_before_fc": True}, ["norm_before_fc"]),
        ({"norm_output": True}, ["norm_output"]),
        (
            {"eagle_aux_hidden_state_layer_ids": [1, 3], "num_aux_hidden_states": 3},
            ["num_aux_hidden_states", 2, 3],
        ),
        (
            {"model_type": "llama4_text", "eagle_aux_hidden_state_layer_ids": [1]},
            ["model_type", "llama4_text"],
        ),
        ({"eagle_aux_hidden_state_layer_ids": [1, 1]}, ["target_layer_ids", "[0, 0]"]),
    ],
)
def test_an_eagle3_that_says_too_little(tmp_path: Path, fields: dict, named: list) -> None:
    write(tmp_path, EAGLE3 | fields, eagle3_tensors(tiny.draft("eagle3", family="llama")))
    with refused(UserError, *named):
        checkpoint.read(tmp_path)


def test_specforge_dspark(tmp_path: Path) -> None:
    """Fields lie in ``dflash_config``, and in early folders the heads' names have a prefix. Anchor-first."""
    made = tiny.draft()
    nested = {
        "projector_type": "dspark", "mask_token_id": 260, "target_layer_ids": [0, 2], "attention_mode": "gqa",
        "confidence_head_alpha": 1.0, **HEADS,
    }  # fmt: skip
    config = LAYERS | {"architectures": ["DSparkDraftModel"], "block_size": 7, "dflash_config": nested}
    heads = ("markov_head.", "confidence_head.")
    renamed = {f"logit_head.{n}" if n.startswith(heads) else n: v for n, v in own(made).items()}
    write(tmp_path, config, renamed)
    loaded = checkpoint.load(tmp_path, target_of(made))
    assert loaded.max_drafts == 7 and torch.equal(logits(loaded), logits(made))
    write(tmp_path, config, renamed | {"markov_head.markov_w1.weight": torch.ones(272, 8)})
    with refused(UserError, "markov_head.markov_w1.weight"):
        checkpoint.read(tmp_path)


@pytest.mark.parametrize(
    "section,named",
    [
        ({"causal": True}, ["causal"]),
        ({"use_swa": True}, ["use_swa"]),
        ({"selector_rank": 16}, ["selector_rank", "16"]),
        ({"block_size": 16}, ["block_size", "dflash_config.block_size"]),
    ],
)
def test_a_dflash_that_no_draft_here_computes(tmp_path: Path, section: dict, named: list) -> None:
    made = tiny.draft("dflash", sample_from_anchor=False, block_size=8)
    nested = {"mask_token_id": 260, "target_layer_ids": [0, 2], **section}
    write(
        tmp_path,
        LAYERS | {"architectures": ["DFlashDraftModel"], "block_size": 8, "dflash_config": nested},
        own(made),
    )
    with refused(UserError, *named):
        checkpoint.read(tmp_path)


def test_taps_beyond_the_target_are_named(tmp_path: Path) -> None:
    checkpoint.save(tiny.draft(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for taps in ([0, 4], [-2, 1], [1, 1], [], "02"):
        (tmp_path / "config.json").write_text(json.dumps(config | {"target_layer_ids": taps}))
        with refused(UserError, "config.json", "target_layer_ids", taps):
            checkpoint.read(tmp_path)
