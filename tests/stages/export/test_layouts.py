"""Every draft in every layout that can hold it: fields as engine_formats has them, and back to the last bit."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from safetensors.torch import save_file
from tiny_exports import DRAFTS, make, saved

from data_specs.errors import UserError
from data_specs.export import FORMATS
from pipeline.config import Config
from pipeline.drafts.base import Blocks
from pipeline.drafts.folders import checkpoint
from pipeline.drafts.model import Model
from pipeline.store.artifacts import Store
from stages.export import hub, llama_cpp, mlx, sglang, speculators, vllm
from stages.export.adopt import run_import
from stages.export.capabilities import refusal
from stages.export.layouts import LAYERS, STATES, eagle3_layout
from stages.export.run import compare
from stages.export.source import DraftSource, EngineLayout, read_source

BLOCKS = Blocks(torch.tensor([[4, 9]]), torch.ones(1, 2, dtype=torch.bool))
PLANS = {
    "vllm": vllm.plan,
    "sglang": sglang.plan,
    "llama_cpp": llama_cpp.plan,
    "mlx": mlx.plan,
    "hub": hub.plan,
}


def plan(form: str, source: DraftSource) -> EngineLayout:
    if form == "speculators":
        return speculators.plan(source, "org/target", ["Qwen3ForCausalLM"])
    return PLANS[form](source)


def write(layout: EngineLayout, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(layout.config))
    save_file(layout.tensors, folder / "model.safetensors")
    return folder


@torch.no_grad()
def outputs(draft: Model) -> list[torch.Tensor]:
    """Logits of two blocks with the sequential head's part, and confidences."""
    batch = tiny.batch([20], taps=len(draft.config.target_layer_ids))
    states = draft.block_states(batch, BLOCKS)
    embedded, features = draft.head_inputs(batch, BLOCKS, states)
    logits = draft.logits(states) + (0 if features is None else draft.markov_head.bias(features))
    return [logits, draft.confidence(states, embedded)] if draft.learns_confidence else [logits]


def assert_same(back: Model, draft: Model, expected: list[torch.Tensor]) -> None:
    """Every weight to the last bit; outputs to rounding, because some CPUs round by how tensors lie in memory."""
    weights = dict(draft.named_parameters())
    assert {name for name, _ in back.named_parameters()} == set(weights)
    for name, weight in back.named_parameters():
        assert torch.equal(weight, weights[name]), name
    torch.testing.assert_close(outputs(back), expected, rtol=1e-5, atol=1e-6)


def target_of(draft: Model) -> SimpleNamespace:
    """Embedding and whole head of a target whose rows the draft has."""
    head = draft.lm_head.weight.data
    if draft.ids is not None:
        head = torch.randn(272, 32).index_copy(0, draft.ids, head)
    return SimpleNamespace(embedding=draft.embed_tokens.weight.data, head=head)


@pytest.mark.parametrize("name", DRAFTS)
def test_every_layout_reads_back_to_the_last_bit(tmp_path: Path, name: str) -> None:
    """Logits and confidences, drafts a round, reduced vocabulary; what cannot be is refused."""
    draft, source = saved(name, tmp_path / "draft")
    target, expected, taken = target_of(draft), outputs(draft), []
    for form in FORMATS:
        if form != "hub" and refusal(form, source.facts):
            continue
        taken.append(form)
        back = checkpoint.load(write(plan(form, source), tmp_path / form), target)
        assert back.max_drafts == draft.max_drafts and back.draft_vocab_size == draft.draft_vocab_size, form
        assert_same(back, draft, expected)
        compare(tmp_path / form, source)
    assert taken == READERS[name]


@pytest.mark.parametrize(
    "name,form",
    [
        ("dspark_gemma4", "vllm"),
        ("eagle3_llama_reduced", "sglang"),
        ("dspark_window", "speculators"),
        ("dspark_rnn", "hub"),
        ("dflash", "mlx"),
    ],
)
def test_import_gives_every_weight_back_to_the_last_bit(tmp_path: Path, name: str, form: str) -> None:
    """As an artifact, in the native layout."""
    draft, source = saved(name, tmp_path / "draft")
    target = target_of(draft)
    found = run_import(Config(), Store(tmp_path / "store"), write(plan(form, source), tmp_path / form))
    assert found is not None
    back = checkpoint.load(found.path, target)
    assert_same(back, draft, outputs(draft))
    assert (
        read_source(found.path).facts == source.facts
        and back.config.architectures == draft.config.architectures
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"mask_token_id": 7},
        {"rms_norm_eps": 1e-5},
        {"rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}},
        {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
        {"sliding_window": 9},
    ],
)
def test_what_shapes_do_not_tell_must_read_back_too(tmp_path: Path, fields: dict) -> None:
    """Each of these loads, and drafts something else."""
    source = saved("dspark_window", tmp_path / "draft")[1]
    layout = plan("sglang", source)
    nested = layout.config["dflash_config"] | {k: v for k, v in fields.items() if k == "mask_token_id"}
    changed = EngineLayout(layout.config | {"dflash_config": nested} | fields, layout.tensors)
    if "head_dim" in fields:  # the norm over a head would tell
        norms = {n: torch.ones(16) for n in layout.tensors if n.endswith(("q_norm.weight", "k_norm.weight"))}
        changed = EngineLayout(changed.config, layout.tensors | norms)
    with pytest.raises(UserError, match="|".join(fields)):
        compare(write(changed, tmp_path / "out"), source)


def test_scaled_positions_stand_under_both_names_for_mlx(tmp_path: Path) -> None:
    """mlx-dspark reads ``rope_scaling`` of a z-lab DFlash, everybody else ``rope_parameters``."""
    yarn = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 512,
        "rope_theta": 10000.0,
    }
    draft = make("dflash_fill_in")
    draft.config.rope_parameters = yarn
    checkpoint.save(draft, tmp_path / "draft")
    source = read_source(tmp_path / "draft")
    layout = plan("mlx", source)
    assert refusal("mlx", source.facts) is None and source.facts.rope == "yarn"
    assert (
        layout.config["rope_scaling"] == layout.config["rope_parameters"]
        and yarn.items() <= layout.config["rope_scaling"].items()
    )
    compare(write(layout, tmp_path / "out"), source)
    assert "rope_scaling" not in plan("mlx", saved("dflash_fill_in", tmp_path / "plain")[1]).config


ALL = ["vllm", "sglang", "llama_cpp", "mlx", "speculators", "hub"]
READERS = {
    "dspark": ALL,
    "dspark_rank_8": ["vllm", "sglang", "llama_cpp", "speculators", "hub"],
    "dspark_gated": ["sglang", "speculators", "hub"],
    "dspark_rnn": ["sglang", "speculators", "hub"],
    "dspark_learned_start": ["hub"],
    "dspark_reduced": ["vllm", "llama_cpp", "mlx", "speculators", "hub"],
    "dspark_window": ALL,
    "dspark_fill_in": ALL,
    "dspark_no_markov": ["vllm", "sglang", "mlx", "speculators", "hub"],
    "dspark_gemma4": ["vllm", "hub"],
    "dspark_llama": ["hub"],
    "dflash": ALL,
    "dflash_gemma4": ["vllm", "hub"],
    "dflash_reduced": ["vllm", "llama_cpp", "mlx", "speculators", "hub"],
    "dflash_fill_in": ALL,
    "dflash_fill_in_reduced": ["vllm", "speculators", "hub"],
    "dflash_fill_in_window": ALL,
    "dflash_fill_in_gemma4": ["hub"],
    "eagle3": ["vllm", "speculators", "hub"],
    "eagle3_llama": ["vllm", "sglang", "llama_cpp", "speculators", "hub"],
    "eagle3_llama_reduced": ["vllm", "sglang", "llama_cpp", "speculators", "hub"],
    "eagle3_llama_window": ["vllm", "speculators", "hub"],
    "mtp": ["hub"],
}

PLAIN = {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": None, "dtype": "float32",
    "eos_token_id": [258, 256], "head_dim": 8, "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02,
    "intermediate_size": 64, "layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 2048,
    "max_window_layers": 2, "model_type": "qwen3", "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "pad_token_id": 256, "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "rope_theta": 10000.0, "sliding_window": None,
    "tie_word_embeddings": False, "use_cache": True, "use_sliding_window": False, "vocab_size": 272,
}  # fmt: skip
HEADS = {
    "markov_rank": 64, "markov_head_type": "vanilla", "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}  # fmt: skip


@pytest.mark.parametrize("form", ["vllm", "sglang", "llama_cpp", "mlx", "hub"])
def test_dspark_is_native_without_embedding_and_head(tmp_path: Path, form: str) -> None:
    """Taps by layers everywhere; nothing of the target's but what describes the draft (``id2label``, ...)."""
    layout = plan(form, saved("dspark", tmp_path)[1])
    assert layout.config == PLAIN | HEADS | {
        "architectures": ["Qwen3DSparkModel"], "block_size": 7, "mask_token_id": 260, "num_target_layers": 4,
        "target_layer_ids": [0, 2], "sample_from_anchor": True, "dspark_bonus_anchor": False,
    }  # fmt: skip
    assert not {"embed_tokens.weight", "lm_head.weight"} & layout.tensors.keys()
    assert {tuple(layout.tensors[f"markov_head.markov_w{i}.weight"].shape) for i in (1, 2)} == {(272, 64)}


def test_a_reduced_vocabulary_takes_its_head_and_both_tables(tmp_path: Path) -> None:
    layout = plan("vllm", saved("dspark_reduced", tmp_path)[1])
    assert layout.config["draft_vocab_size"] == 89 and "embed_tokens.weight" not in layout.tensors
    assert layout.tensors["lm_head.weight"].shape == (89, 32)
    assert layout.tensors["markov_head.markov_w1.weight"].shape == (272, 64)
    assert layout.tensors["markov_head.markov_w2.weight"].shape == (89, 64)
    assert layout.tensors["d2t"][:3].tolist() == [5, 7, 9] and layout.tensors["d2t"].dtype == torch.int64
    assert layout.tensors["t2d"].dtype == torch.bool and int(layout.tensors["t2d"].sum()) == 89


def test_fill_in_dflash_is_z_labs(tmp_path: Path) -> None:
    layout = plan("llama_cpp", saved("dflash_fill_in", tmp_path)[1])
    assert layout.config == PLAIN | {
        "architectures": ["DFlashDraftModel"], "block_size": 8, "num_target_layers": 4,
        "dflash_config": {"mask_token_id": 260, "target_layer_ids": [0, 2]},
        "sample_from_anchor": False, "dspark_bonus_anchor": True,
    }  # fmt: skip
    assert {name.partition(".")[0] for name in layout.tensors} == {"fc", "hidden_norm", "norm", "layers"}


def test_anchor_first_dflash_is_a_dspark_with_a_marked_head_of_zeros(tmp_path: Path) -> None:
    layout = plan("vllm", saved("dflash", tmp_path)[1])
    assert (
        layout.config["architectures"] == ["Qwen3DSparkModel"] and layout.config["zero_markov_head"] is True
    )
    assert layout.config["markov_rank"] == 64 and layout.config["enable_confidence_head"] is False
    assert layout.config["sample_from_anchor"] is True and layout.config["dspark_bonus_anchor"] is False
    for name in ("markov_head.markov_w1.weight", "markov_head.markov_w2.weight"):
        assert layout.tensors[name].shape == (272, 64) and not layout.tensors[name].any()


def test_blocks_of_sliding_layers_are_said_not_to_be_causal(tmp_path: Path) -> None:
    """vLLM and SGLang take sliding layers of a block drafter to be causal where a config does not say."""
    config = plan("vllm", saved("dspark_window", tmp_path)[1]).config
    assert config["layer_types"] == ["sliding_attention"] * 2 and config["sliding_window"] == 8
    assert config["is_causal"] is False
    assert config["dflash_config"] == {"causal": False, "mask_token_id": 260, "target_layer_ids": [0, 2]}
    nested = plan("speculators", saved("dspark_window", tmp_path)[1]).config["transformer_layer_config"]
    assert nested["is_causal"] is False


EAGLE3 = {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "dtype": "float32",
    "eos_token_id": [258, 256], "head_dim": 8, "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02,
    "intermediate_size": 64, "max_position_embeddings": 2048, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 4, "num_hidden_layers": 1, "num_key_value_heads": 2, "pad_token_id": 256,
    "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "use_cache": True, "vocab_size": 272, "architectures": ["LlamaForCausalLMEagle3"],
    "block_size": 7, "draft_vocab_size": 272, "norm_before_residual": False, "num_aux_hidden_states": 3,
    "ttt_length": 7,
}  # fmt: skip


NUMBERED = {
    STATES: {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
    LAYERS: {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True}},
}


@pytest.mark.parametrize("names", [(STATES,), (LAYERS,), (STATES, LAYERS)])
def test_eagle3_says_its_taps_under_each_name_that_is_asked_for(tmp_path: Path, names: tuple) -> None:
    layout = eagle3_layout(saved("eagle3_llama", tmp_path)[1], names)
    taps = {field: value for name in names for field, value in NUMBERED[name].items()}
    assert layout.config == EAGLE3 | taps
    assert (
        "midlayer.self_attn.q_proj.weight" in layout.tensors
        and "midlayer.hidden_norm.weight" in layout.tensors
    )
    assert layout.tensors["embed_tokens.weight"].shape == layout.tensors["lm_head.weight"].shape == (272, 32)


def test_eagle3_on_the_hub_is_read_by_all_three(tmp_path: Path) -> None:
    config = plan("hub", saved("eagle3_llama", tmp_path)[1]).config
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]


@pytest.mark.parametrize("form", ["vllm", "sglang", "llama_cpp", "hub"])
def test_eagle3_without_a_head_of_its_own_says_no_size(tmp_path: Path, form: str) -> None:
    """SGLang takes the target's head where draft_vocab_size is null, and leaves a random one where it is not."""
    draft = make("eagle3_llama")
    checkpoint.save(draft, tmp_path)
    tensors = {
        n: v for n, v in draft.state_dict().items() if n not in ("embed_tokens.weight", "lm_head.weight")
    }
    save_file(tensors, tmp_path / "model.safetensors")
    source = read_source(tmp_path)
    layout = plan(form, source)
    assert layout.config["draft_vocab_size"] is None and "lm_head.weight" not in layout.tensors
    compare(write(layout, tmp_path / form), source)


def test_speculators(tmp_path: Path) -> None:
    """What speculators 0.9.0 itself writes, which was compared with it (config and tensors) by its own classes."""
    layers = {k: v for k, v in PLAIN.items() if k != "dtype"}
    greedy = {
        "accept_tolerance": 0.0,
        "proposal_type": "greedy",
        "speculative_tokens": 7,
        "verifier_accept_k": 1,
    }
    common = {
        "block_size": 7, "mask_token_id": 260, "aux_hidden_state_layer_ids": [1, 3], "draft_vocab_size": 272,
        "dtype": "float32", "sliding_window_non_causal": True, "speculators_version": "0.9.0",
        "target_hidden_size": None, "tie_word_embeddings": False, "transformer_layer_config": layers,
    }  # fmt: skip
    settings = {
        "default_proposal_method": "greedy", "proposal_methods": [greedy],
        "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "org/target"},
    }  # fmt: skip
    assert plan("speculators", saved("dspark", tmp_path)[1]).config == common | HEADS | {
        "architectures": ["DSparkSpeculator"], "speculators_model_type": "dspark", "sample_from_anchor": True,
        "speculators_config": settings | {"algorithm": "dspark"},
    }  # fmt: skip
    dflash = plan("speculators", saved("dflash_fill_in", tmp_path)[1]).config
    assert dflash == common | {
        "architectures": ["DFlashSpeculator"], "speculators_model_type": "dflash", "sample_from_anchor": False,
        "block_size": 8, "speculators_config": settings | {"algorithm": "dflash"},
    }  # fmt: skip
    eagle3 = plan("speculators", saved("eagle3_llama", tmp_path)[1])
    assert eagle3.config["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
    assert eagle3.config["norm_before_residual"] is False, "true for a reader where it is not said"
    assert "layers.0.hidden_norm.weight" in eagle3.tensors and "embed_tokens.weight" in eagle3.tensors


def test_gemma_says_its_heads_flatly(tmp_path: Path) -> None:
    """transformers 5.24 folds them into ``per_layer_config``, which vLLM and mlx-dspark do not read."""
    config = plan("vllm", saved("dspark_gemma4", tmp_path)[1]).config
    assert config["architectures"] == ["Gemma4DSparkModel"] and config["model_type"] == "gemma4_text"
    assert (config["head_dim"], config["global_head_dim"]) == (8, 8)
    assert (config["num_key_value_heads"], config["num_global_key_value_heads"]) == (2, 2)
    assert config["final_logit_softcapping"] is None, "30 where it is not said"
    assert config["rope_theta"] == 10000.0 and "per_layer_config" not in config


def test_gemma_with_other_heads_in_full_layers(tmp_path: Path) -> None:
    """The reference's tiny Gemma: its full-attention layers, and so the draft's, have heads of their own size."""
    source = read_source(Path(__file__).parents[2] / "golden" / "gemma4_dspark_vanilla")
    config = plan("vllm", source).config
    assert (config["global_head_dim"], config["num_global_key_value_heads"]) == (16, 1)
    assert config["attention_k_eq_v"] is True and config["final_logit_softcapping"] == 30.0
    assert config["rope_parameters"]["full_attention"]["partial_rotary_factor"] == 0.25
    back = read_source(write(plan("vllm", source), tmp_path / "vllm"))
    assert back.facts == source.facts
    assert refusal("mlx", replace(source.facts, rank=64)) is None, "a Gemma target's own rotary positions"


def test_types_are_kept(tmp_path: Path) -> None:
    checkpoint.save(make("dspark"), tmp_path, torch.bfloat16)
    layout = plan("vllm", read_source(tmp_path))
    assert layout.config["dtype"] == "bfloat16"
    assert {value.dtype for value in layout.tensors.values()} == {torch.bfloat16}
