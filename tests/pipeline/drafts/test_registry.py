from types import SimpleNamespace

import pytest
import tiny
import tiny_targets
import torch
from tiny_errors import refused

from pipeline.config import ConfigError, LossConfig
from pipeline.drafts import registry
from pipeline.drafts.registry import Start

ALGORITHMS = ("dspark", "dflash", "eagle3", "mtp")


def test_sizes_come_from_the_target() -> None:
    config = registry.draft_config(tiny.drafter(), tiny.target_config(), 272, [0, 2], 260)
    sizes = (config.hidden_size, config.head_dim, config.vocab_size, config.num_hidden_layers)
    assert sizes == (32, 8, 272, 2)
    assert (config.num_target_layers, config.num_attention_heads, config.num_key_value_heads) == (4, 4, 2)
    assert config.rope_parameters == tiny.target_config().rope_parameters, (
        "pitfall 32: rotary tables from one place"
    )
    assert config.max_position_embeddings == 2048
    assert config.rms_norm_eps == tiny.target_config().rms_norm_eps
    assert config.eos_token_id == [258, 256] and config.pad_token_id == 256


@pytest.mark.parametrize(
    "algorithm,changes,architecture",
    [
        ("dspark", {}, "Qwen3DSparkModel"),
        ("dflash", {}, "Qwen3DSparkModel"),
        ("dflash", {"sample_from_anchor": False}, "DFlashDraftModel"),
        ("eagle3", {}, "Qwen3Eagle3Model"),
        ("eagle3", {"family": "llama"}, "LlamaEagle3Model"),
        ("mtp", {}, "Qwen3MTPModel"),
        ("dspark", {"family": "gemma4"}, "Gemma4DSparkModel"),
    ],
)
def test_architectures_say_algorithm_and_family(algorithm: str, changes: dict, architecture: str) -> None:
    config = registry.draft_config(tiny.drafter(algorithm, **changes), tiny.target_config(), 272, [0, 2], 260)
    assert config.architectures == [architecture]
    assert registry.ARCHITECTURES[architecture] is registry.ALGORITHMS[algorithm]
    family = changes.get("family", "qwen3")
    assert registry.MODEL_TYPES[config.model_type] == family
    assert config.sample_from_anchor is changes.get("sample_from_anchor", True)


@pytest.mark.parametrize(
    "model_type,family",
    [("qwen3", "qwen3"), ("llama", "qwen3"), ("gpt_oss", "qwen3"), ("deepseek_v4", "qwen3"), ("gemma3_text", "gemma4"),
     ("gemma4_text", "gemma4"), ("gemma4_unified_text", "gemma4")],
)  # fmt: skip
def test_family_of_a_target(model_type: str, family: str) -> None:
    assert registry.family_of(tiny.drafter(), SimpleNamespace(model_type=model_type)) == family
    assert registry.family_of(tiny.drafter(family="llama"), SimpleNamespace(model_type=model_type)) == "llama"


def test_chosen_taps() -> None:
    """Indices into the cache's taps."""
    cached = [1, 9, 17, 25, 33]
    assert registry.chosen_taps(tiny.drafter(), cached) == [0, 1, 2, 3, 4]
    assert registry.chosen_taps(tiny.drafter(num_taps=3), cached) == [0, 2, 4]
    assert registry.chosen_taps(tiny.drafter(num_taps=2), cached) == [0, 4]
    assert registry.chosen_taps(tiny.drafter(num_taps=1), cached) == [2]
    assert registry.chosen_taps(tiny.drafter(num_taps=0), cached) == []
    with refused(ConfigError, "drafter.num_taps=6", cached):
        registry.chosen_taps(tiny.drafter(num_taps=6), cached)


@pytest.mark.parametrize(
    "algorithm,changes,expected",
    [
        ("dspark", {}, (7, 7, 7.0)),
        ("dspark", {"block_size": 16}, (16, 16, 16.0)),
        ("dspark", {"loss": LossConfig(decay=4.0)}, (7, 7, 4.0)),
        ("dflash", {}, (7, 7, 7.0)),
        ("dflash", {"block_size": 16, "sample_from_anchor": False}, (15, 15, 16.0)),
        ("eagle3", {}, (7, 7, 4.481420)),
        ("eagle3", {"block_size": 16, "train_steps": 7}, (16, 7, 4.481420)),
        ("mtp", {"train_steps": 1}, (7, 1, 7.0)),
        ("mtp", {"train_steps": 1, "block_size": 1}, (1, 1, 1.0)),
        ("mtp", {"train_steps": 9}, (7, 7, 7.0)),
    ],
)
def test_what_is_supervised(algorithm: str, changes: dict, expected: tuple) -> None:
    how = registry.supervised(tiny.drafter(algorithm, **changes))
    assert (how.drafts, how.trained, how.decay) == pytest.approx(expected, abs=1e-6)
    made = registry.build(tiny.drafter(algorithm, **changes), tiny.target_tensors(), [0, 2], 260)
    assert (made.max_drafts, made.trained_drafts) == expected[:2], "the draft itself knows the same"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_embedding_and_head_are_the_targets_own_bits(algorithm: str) -> None:
    """Pitfall 25."""
    tensors = tiny.target_tensors()
    draft = registry.build(tiny.drafter(algorithm), tensors, [0, 2], 260)
    assert draft.embed_tokens.weight.dtype == torch.bfloat16
    assert torch.equal(draft.embed_tokens.weight, tensors.embedding)
    assert torch.equal(draft.lm_head.weight, tensors.head)
    frozen = {name for name, p in draft.named_parameters() if not p.requires_grad}
    assert frozen == {"embed_tokens.weight", "lm_head.weight"}
    assert all(p.dtype == torch.float32 for p in draft.trainable_parameters())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_reduced_vocabulary(algorithm: str) -> None:
    """The draft has rows of the target's head and the engines' two tables; the whole head serves only the loss."""
    tensors, ids = tiny.target_tensors(), torch.tensor([3, 7, 8, 200])
    draft = registry.build(tiny.drafter(algorithm), tensors, [0, 2], 260, Start(ids=ids))
    assert draft.config.draft_vocab_size == draft.draft_vocab_size == 4
    assert (
        torch.equal(draft.lm_head.weight, tensors.head[[3, 7, 8, 200]])
        and not draft.lm_head.weight.requires_grad
    )
    assert draft.d2t.tolist() == [3, 6, 6, 197] and draft.d2t.dtype == torch.int64
    assert draft.t2d.nonzero().squeeze(1).tolist() == [3, 7, 8, 200] and draft.t2d.dtype == torch.bool
    assert draft.ids.tolist() == [3, 7, 8, 200]
    assert draft.embed_tokens.weight.shape == (272, 32), "any token may come before"
    assert torch.equal(draft.target_head, tensors.head) and "target_head" not in draft.state_dict()
    assert torch.equal(registry.head_rows(draft, tensors.head), draft.lm_head.weight)
    if algorithm == "dspark":
        assert draft.markov_head.markov_w1.weight.shape == (272, 8)
        assert draft.markov_head.markov_w2.weight.shape == (4, 8)


def test_a_whole_vocabulary_has_no_tables() -> None:
    draft = registry.build(tiny.drafter(), tiny.target_tensors(), [0, 2], 260)
    assert draft.d2t is draft.t2d is draft.ids is None
    assert not {"d2t", "t2d"} & draft.state_dict().keys()
    assert getattr(draft.config, "draft_vocab_size", None) is None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_seed_gives_the_same_draft(algorithm: str) -> None:
    drafts = []
    for _ in range(2):
        torch.manual_seed(5)
        drafts.append(
            registry.build(tiny.drafter(algorithm), tiny.target_tensors(), [0, 2], 260).state_dict()
        )
    assert all(torch.equal(drafts[0][name], drafts[1][name]) for name in drafts[0])


def test_new_weights_have_the_targets_own_spread() -> None:
    draft = registry.build(tiny.drafter(), tiny.target_tensors(), [0, 2], 260)
    assert draft.fc.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not draft.confidence_head.proj.bias.any()
    assert torch.equal(draft.norm.weight, torch.ones(32))


def test_a_softcapped_target_caps_every_draft() -> None:
    """Gemma's probabilities come from capped logits, so drafts with any layers must cap theirs."""
    config = tiny_targets.gemma3().config
    config.final_logit_softcapping = 20.0
    for family in (None, "qwen3", "llama"):
        draft = registry.build(tiny.drafter(family=family), tiny.target_tensors(config=config), [0, 2], 260)
        assert draft.softcap == 20.0
    assert registry.build(tiny.drafter(), tiny.target_tensors(), [0, 2], 260).softcap is None


def rope(scaling: dict[str, object] | None, **target: object) -> tuple[dict[str, object], int]:
    """Rotary settings and positions of a draft for a target with 2,048 positions."""
    config = tiny.target_config(max_position_embeddings=2048, **target)
    made = registry.draft_config(tiny.drafter(rope_scaling=scaling), config, 272, [0, 2], 260)
    return dict(made.rope_parameters), made.max_position_embeddings


def test_rotary_settings_are_the_targets_unless_the_user_asks_for_others() -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 512}
    assert rope(None, rope_parameters=yarn) == (yarn, 2048)
    plain = {"rope_type": "default", "rope_theta": 1e6}
    asked = {"rope_type": "yarn", "factor": 2.0}
    longer = asked | {"rope_theta": 1e6, "original_max_position_embeddings": 2048}
    assert rope(asked, rope_parameters=plain) == (longer, 4096)


def test_a_target_without_rotary_positions_gives_plain_ones() -> None:
    config = tiny.target_config(max_position_embeddings=2048).to_dict()
    bare = SimpleNamespace(**{name: value for name, value in config.items() if name != "rope_parameters"})
    made = registry.draft_config(tiny.drafter(), bare, 272, [0, 2], 260)
    assert dict(made.rope_parameters) == {"rope_type": "default", "rope_theta": 10000.0}
