import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from tiny_errors import refused

from data_specs.draft import DEFAULTS
from pipeline.drafts.base import Blocks
from pipeline.drafts.folders import checkpoint
from pipeline.drafts.folders.fields import CheckpointError
from pipeline.drafts.model import Model

GOLDEN = Path(__file__).parents[3] / "golden"
BLOCKS = Blocks(torch.tensor([[4, 9]]), torch.ones(1, 2, dtype=torch.bool))
IDS = torch.arange(5, 272, 3)
KINDS = [
    ("dspark", {}), ("dspark", {"markov_head": "gated"}), ("dspark", {"markov_head": "rnn", "learned_start": True}),
    ("dflash", {}), ("dflash", {"sample_from_anchor": False}), ("eagle3", {}), ("mtp", {"num_taps": 0}),
]  # fmt: skip


@torch.no_grad()
def logits(draft: Model) -> torch.Tensor:
    """Logits of two blocks, including the part of the sequential head."""
    batch = tiny.batch([20], taps=len(draft.config.target_layer_ids))
    states = draft.eval().block_states(batch, BLOCKS)
    _, features = draft.head_inputs(batch, BLOCKS, states)
    return draft.logits(states) + (0 if features is None else draft.markov_head.bias(features))


def same_tensors(one: Model, other: Model) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) and a[n].dtype == b[n].dtype for n in a)


@pytest.mark.parametrize("ids", [None, IDS], ids=["whole", "reduced"])
@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma4"])
@pytest.mark.parametrize("algorithm,changes", KINDS)
def test_load_gives_back_the_bits_and_the_logits(tmp_path, algorithm, changes, family, ids) -> None:
    draft = tiny.draft(algorithm, ids=ids, family=family, **changes)
    checkpoint.save(draft, tmp_path)
    loaded = checkpoint.load(tmp_path)
    assert type(loaded) is type(draft) and same_tensors(draft, loaded)
    assert torch.equal(logits(draft), logits(loaded))
    assert (loaded.max_drafts, loaded.trained_drafts) == (draft.max_drafts, draft.trained_drafts)
    assert loaded.draft_vocab_size == (272 if ids is None else len(IDS))


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma4"])
@pytest.mark.parametrize("algorithm", ["dspark", "eagle3"])
def test_the_window_is_kept(tmp_path, algorithm: str, family: str) -> None:
    draft = tiny.draft(algorithm, family=family, sliding_window=8)
    checkpoint.save(draft, tmp_path)
    loaded = checkpoint.load(tmp_path)
    assert loaded.config.sliding_window == 8 and set(loaded.config.layer_types) == {"sliding_attention"}
    assert torch.equal(logits(draft), logits(loaded))
    whole = tiny.draft(algorithm, family=family)
    whole.load_state_dict(draft.state_dict())
    assert not torch.allclose(logits(whole), logits(loaded)), "and it matters"


def test_config_says_which_slot_predicts_what(tmp_path: Path) -> None:
    checkpoint.save(tiny.draft(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["sample_from_anchor"] is True and config["dspark_bonus_anchor"] is False
    assert config["architectures"] == ["Qwen3DSparkModel"] and config["model_type"] == "qwen3"
    assert config["target_layer_ids"] == [0, 2] and config["mask_token_id"] == 260
    checkpoint.save(tiny.draft("dflash", sample_from_anchor=False), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["sample_from_anchor"] is False and config["architectures"] == ["DFlashDraftModel"]
    assert config["dspark_bonus_anchor"] is True
    edit_config(tmp_path, sample_from_anchor=...)  # only vLLM's field for it
    assert checkpoint.load(tmp_path).max_drafts == 6


def test_tensor_names_are_those_that_engines_read(tmp_path: Path) -> None:
    """There is no ``model.`` prefix; Eagle3's layer reads 2H and has a hidden_norm; a reduced vocabulary has tables."""
    checkpoint.save(tiny.draft("eagle3", ids=IDS), tmp_path)
    shapes = {name: tuple(value.shape) for name, value in load_file(tmp_path / "model.safetensors").items()}
    assert shapes == {
        "embed_tokens.weight": (272, 32), "lm_head.weight": (89, 32), "d2t": (89,), "t2d": (272,),
        "fc.weight": (32, 64), "norm.weight": (32,),
        "layers.0.hidden_norm.weight": (32,), "layers.0.input_layernorm.weight": (32,),
        "layers.0.post_attention_layernorm.weight": (32,), "layers.0.self_attn.q_proj.weight": (32, 64),
        "layers.0.self_attn.k_proj.weight": (16, 64), "layers.0.self_attn.v_proj.weight": (16, 64),
        "layers.0.self_attn.o_proj.weight": (32, 32), "layers.0.self_attn.q_norm.weight": (8,),
        "layers.0.self_attn.k_norm.weight": (8,), "layers.0.mlp.gate_proj.weight": (64, 32),
        "layers.0.mlp.up_proj.weight": (64, 32), "layers.0.mlp.down_proj.weight": (32, 64),
    }  # fmt: skip
    checkpoint.save(tiny.draft(markov_head="rnn", learned_start=True), tmp_path)
    shapes = {name: tuple(value.shape) for name, value in load_file(tmp_path / "model.safetensors").items()}
    assert {n: s for n, s in shapes.items() if n.startswith(("markov", "confidence"))} == {
        "markov_head.markov_w1.weight": (272, 8), "markov_head.markov_w2.weight": (272, 8),
        "markov_head.joint_proj.weight": (24, 48), "markov_head.joint_proj.bias": (24,),
        "markov_head.initial_state": (8,), "confidence_head.proj.weight": (1, 40), "confidence_head.proj.bias": (1,),
    }  # fmt: skip


def test_trainable_tensors_take_the_asked_type_and_frozen_ones_keep_their_bits(tmp_path: Path) -> None:
    draft = tiny.draft(ids=IDS)
    checkpoint.save(draft, tmp_path, torch.bfloat16)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors["fc.weight"].dtype == torch.bfloat16
    assert torch.equal(tensors["lm_head.weight"], draft.lm_head.weight)
    assert (tensors["d2t"].dtype, tensors["t2d"].dtype) == (torch.int64, torch.bool)


# --- embedding and head from the target ----------------------------------------------------------------------


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not ...}))


def edit_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, value in changes.items():
        tensors[name.replace("__", ".")] = value
    save_file({k: v for k, v in tensors.items() if v is not None}, folder / "model.safetensors")


def test_embedding_and_head_may_be_the_targets(tmp_path: Path) -> None:
    draft = tiny.draft()
    checkpoint.save(draft, tmp_path)
    edit_tensors(tmp_path, embed_tokens__weight=None, lm_head__weight=None)
    target = SimpleNamespace(embedding=draft.embed_tokens.weight.data, head=draft.lm_head.weight.data)
    assert same_tensors(checkpoint.load(tmp_path, target), draft)
    with pytest.raises(CheckpointError, match="embed_tokens.weight"):
        checkpoint.load(tmp_path)


def test_the_head_of_a_reduced_vocabulary_is_the_targets_rows(tmp_path: Path) -> None:
    draft = tiny.draft("eagle3", ids=IDS)
    checkpoint.save(draft, tmp_path)
    edit_tensors(tmp_path, lm_head__weight=None, t2d=None)
    target = SimpleNamespace(embedding=draft.embed_tokens.weight.data, head=draft.target_head)
    loaded = checkpoint.load(tmp_path, target)
    assert same_tensors(loaded, draft)
    assert torch.equal(loaded.lm_head.weight, draft.target_head[IDS]) and torch.equal(loaded.ids, IDS)
    assert torch.equal(loaded.target_head, draft.target_head), "it can be trained on"
    with pytest.raises(CheckpointError, match="lm_head.weight"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    "changes,named",
    [
        ({"d2t": torch.full((89,), 250)}, ["d2t", "272"]),
        ({"d2t": -torch.arange(89)}, ["d2t", "272"]),
        ({"t2d": torch.arange(272) < 89}, ["t2d", "89"]),
    ],
)
def test_tables_that_name_no_vocabulary_are_refused(tmp_path: Path, changes: dict, named: list) -> None:
    draft = tiny.draft("eagle3", ids=IDS)
    checkpoint.save(draft, tmp_path)
    edit_tensors(tmp_path, **changes)
    target = SimpleNamespace(embedding=draft.embed_tokens.weight.data, head=draft.target_head)
    with refused(CheckpointError, *named):
        checkpoint.load(tmp_path, target)


def test_the_first_tokens_as_draft_vocabulary(tmp_path: Path) -> None:
    """All offsets are 0, and that is not taken for damage."""
    checkpoint.save(tiny.draft("eagle3", ids=torch.arange(50)), tmp_path)
    assert checkpoint.load(tmp_path).ids.tolist() == list(range(50))


# --- folders of others -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["gemma4_dspark_vanilla", "qwen3_dspark_vanilla", "qwen3_dspark_rnn", "qwen3_eagle3"]
)
def test_golden_folders_load_and_save_bit_for_bit(tmp_path: Path, name: str) -> None:
    """transformers 5.10 wrote Gemma's, with the sizes of full-attention layers as flat fields."""
    draft = checkpoint.load(GOLDEN / name)
    checkpoint.save(draft, tmp_path)
    theirs, ours = (load_file(folder / "model.safetensors") for folder in (GOLDEN / name, tmp_path))
    assert theirs.keys() <= ours.keys() and all(torch.equal(theirs[n], ours[n]) for n in theirs)
    assert ours.keys() - theirs.keys() <= {"layers.0.layer_scalar", "layers.1.layer_scalar"}
    again = checkpoint.load(tmp_path)
    assert same_tensors(draft, again)
    kept = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings", "rms_norm_eps",
        "rope_parameters", "layer_types", "target_layer_ids", "vocab_size",
    )  # fmt: skip
    for field in kept:
        assert getattr(again.config, field) == getattr(draft.config, field), field


def test_gemma_of_transformers_5_10() -> None:
    config = checkpoint.load(GOLDEN / "gemma4_dspark_vanilla").config
    assert (config.per_layer_config[0].head_dim, config.per_layer_config[0].num_key_value_heads) == (16, 1)
    assert config.attention_k_eq_v and config.final_logit_softcapping == 30.0
    assert config.layer_types == ["full_attention", "full_attention"]


def test_z_lab_dflash(tmp_path: Path) -> None:
    """1+N with a nested dflash_config and old rotary fields, without embedding and head."""
    made = tiny.draft("dflash", sample_from_anchor=False, block_size=4)
    own = {n: v for n, v in made.state_dict().items() if n not in ("embed_tokens.weight", "lm_head.weight")}
    save_file(own, tmp_path / "model.safetensors")
    config = {
        "architectures": ["DFlashDraftModel"], "attention_bias": False, "attention_dropout": 0.0,
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "block_size": 4, "bos_token_id": 151643,
        "dflash_config": {"mask_token_id": 260, "target_layer_ids": [0, 2]}, "dtype": "bfloat16",
        "eos_token_id": 151645, "head_dim": 8, "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02,
        "intermediate_size": 64, "layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 2048,
        "max_window_layers": 2, "model_type": "qwen3", "num_attention_heads": 4, "num_hidden_layers": 2,
        "num_key_value_heads": 2, "num_target_layers": 4, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 10000.0, "sliding_window": None, "tie_word_embeddings": True, "use_cache": True,
        "use_sliding_window": False, "vocab_size": 272,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    target = SimpleNamespace(embedding=made.embed_tokens.weight.data, head=made.lm_head.weight.data)
    loaded = checkpoint.load(tmp_path, target)
    assert same_tensors(loaded, made) and loaded.max_drafts == 3
    assert loaded.markov_head is loaded.confidence_head is None
    assert torch.equal(logits(loaded), logits(made))
    edit_config(tmp_path, sample_from_anchor=False)  # some folders have the field
    assert checkpoint.load(tmp_path, target).max_drafts == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"sample_from_anchor": True},
        {"dspark_bonus_anchor": False},
        {"dflash_config": {"sample_from_anchor": True}},
    ],
)
def test_a_z_lab_dflash_cannot_sample_from_the_anchor(tmp_path: Path, fields: dict) -> None:
    """vLLM refuses such a folder; llama.cpp and mlx-dspark draft block_size - 1 tokens, each one place off."""
    draft = tiny.draft("dflash")
    checkpoint.save(draft, tmp_path)
    both = {"sample_from_anchor": ..., "dspark_bonus_anchor": ...}
    edit_config(tmp_path, **both | {"architectures": ["DFlashDraftModel"]} | fields)
    with refused(CheckpointError, "sample_from_anchor", "Qwen3DSparkModel"):
        checkpoint.load(tmp_path)
    edit_config(tmp_path, architectures=["Qwen3DSparkModel"])
    assert torch.equal(logits(checkpoint.load(tmp_path)), logits(draft)), "the remedy in the message works"


def test_what_a_config_may_leave_out(tmp_path: Path) -> None:
    """Without their fields there are no heads, as in vLLM."""
    checkpoint.save(tiny.draft("dflash"), tmp_path)
    edit_config(tmp_path, **dict.fromkeys([*DEFAULTS, "ttt_length", "dspark_bonus_anchor"], ...))
    loaded = checkpoint.load(tmp_path)
    assert loaded.markov_head is loaded.confidence_head is None and loaded.trained_drafts == 7


# --- damage ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checkpoint.save(tiny.draft(), tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "changes,named",
    [
        ({"fc__weight": None}, ["fc.weight", "(32, 64)"]),
        ({"extra__weight": torch.ones(2)}, ["extra.weight"]),
        ({"d2t": torch.zeros(9, dtype=torch.int64)}, ["d2t"]),
        ({"norm__weight": torch.ones(31)}, ["norm.weight", "(32,)", "(31,)"]),
        ({"markov_head__markov_w2__weight": torch.zeros(272, 8)}, ["markov_head.markov_w2.weight"]),
    ],
)
def test_damaged_tensors_are_named(folder: Path, changes: dict, named: list) -> None:
    """Pitfalls 25 and 43: without these errors such a draft loads, and nothing is accepted."""
    edit_tensors(folder, **changes)
    with refused(CheckpointError, "model.safetensors", *named):
        checkpoint.load(folder)


@pytest.mark.parametrize(
    "changes,named",
    [
        ({"target_layer_ids": ...}, ["target_layer_ids"]),
        ({"architectures": ...}, ["architectures"]),
        ({"block_size": ...}, ["block_size"]),
        ({"mask_token_id": ...}, ["mask_token_id"]),
        ({"mask_token_id": 272}, ["mask_token_id", "272"]),
        ({"architectures": ["LlamaForCausalLM"]}, ["architectures", "LlamaForCausalLM"]),
        ({"architectures": []}, ["architectures", "Qwen3DSparkModel"]),
        ({"model_type": "mamba"}, ["model_type", "'gemma4_text', 'llama', 'qwen3'", "mamba"]),
        ({"markov_head_type": "magic"}, ["markov_head_type", "'gated', 'rnn', 'vanilla'", "magic"]),
        ({"markov_head_type": "rnn"}, ["markov_head.joint_proj.bias"]),
        (
            {"sample_from_anchor": False, "dspark_bonus_anchor": True, "block_size": 1},
            ["block_size", "1"],
        ),
        ({"sample_from_anchor": False}, ["sample_from_anchor", "dspark_bonus_anchor"]),
        ({"draft_vocab_size": 100}, ["d2t"]),
    ],
)
def test_damaged_config_is_named(folder: Path, changes: dict, named: list) -> None:
    edit_config(folder, **changes)
    with refused(CheckpointError, *named):
        checkpoint.load(folder)


def test_a_chain_that_says_no_length_is_named(tmp_path: Path) -> None:
    for algorithm in ("eagle3", "mtp"):
        checkpoint.save(tiny.draft(algorithm), tmp_path)
        edit_config(tmp_path, block_size=...)
        assert checkpoint.load(tmp_path).max_drafts == 7, "the trained steps"
        edit_config(tmp_path, ttt_length=...)
        with refused(CheckpointError, "config.json", "block_size"):
            checkpoint.load(tmp_path)


@pytest.mark.parametrize("text", ["", '{"block_size": 7', "[1, 2]"])
def test_a_config_that_is_no_object_is_named(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match="config.json"):
        checkpoint.load(folder)


def test_truncated_weights_are_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="model.safetensors"):
        checkpoint.load(folder)


def test_no_folder(tmp_path: Path) -> None:
    with refused(CheckpointError, tmp_path / "none", "config.json"):
        checkpoint.load(tmp_path / "none")
