"""A draft layer without context is the target's own: compare with transformers' layer, family by family."""

from functools import partial
from types import SimpleNamespace

import pytest
import tiny
import tiny_targets
import torch
import transformers as hf
from tiny_layers import attend_itself, config, unified
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextDecoderLayer
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from pipeline.drafts import registry
from pipeline.drafts.families import layers, qwen3

THEIRS = {"qwen3": Qwen3DecoderLayer, "llama": LlamaDecoderLayer, "gemma4": Gemma4TextDecoderLayer}
each_family = pytest.mark.parametrize("family", registry.FAMILIES)


@each_family
@torch.no_grad()
def test_without_context_a_layer_is_the_targets_own(family: str) -> None:
    """A block of five slots at positions 3 .. 7, each of which sees all others."""
    torch.manual_seed(0)
    settings = config(family, unified() if family == "gemma4" else None)
    settings._attn_implementation = "sdpa"
    theirs, ours = THEIRS[family](settings, 0), registry.FAMILIES[family].DecoderLayer(settings, 0)
    for weight in theirs.state_dict().values():
        weight.normal_(std=0.3)
    ours.load_state_dict(theirs.state_dict())
    x, positions = torch.randn(2, 5, 32), torch.arange(3, 8).expand(2, -1)
    tables = registry.FAMILIES[family].Rotary(settings)(x, positions, ours.kind)
    cos, sin = (t.squeeze(2) for t in tables)
    everything = torch.zeros(2, 1, 5, 5)
    expected = theirs(x, position_embeddings=(cos, sin), attention_mask=everything, shared_kv_states={})
    assert torch.allclose(ours(x, tables, partial(attend_itself)), expected, atol=1e-5)


@each_family
def test_rotary_frequencies_are_never_rounded(family: str) -> None:
    """Pitfall 32: a model in bf16 keeps its position tables; only their results have the type of x."""
    rotary = registry.FAMILIES[family].Rotary(config(family))
    before = {name: value.clone() for name, value in rotary.named_buffers()}
    rotary.to(torch.bfloat16)
    assert before and all(torch.equal(value, before[name]) for name, value in rotary.named_buffers())
    x, far = torch.zeros(1, 1, 32), torch.tensor([[30_011]])
    cos = rotary(x, far, "full_attention")[0]
    rounded = rotary(x.bfloat16(), far, "full_attention")[0]
    assert rounded.dtype == torch.bfloat16 and torch.equal(rounded, cos.bfloat16())


def test_position_zero_is_not_turned_and_lengths_are_kept() -> None:
    rotary, x = qwen3.Rotary(config("qwen3")), torch.randn(2, 4, 8)
    turned = layers.rotate(x, rotary(x, torch.tensor([0, 5]), "full_attention"))
    assert torch.equal(turned[0], x[0])
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-5)


# --- config fields of a draft for a target -------------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_nested_rotary_settings_are_those_of_full_layers(family: str) -> None:
    """Gemma 3 has settings by layer type, DeepSeek-V4 for main and compressed attention."""
    gemma3 = tiny_targets.gemma3().config
    assert config(family, gemma3).rope_parameters == {"rope_type": "default", "rope_theta": 1000000.0}
    deepseek = hf.DeepseekV4Config()
    made = config(family, deepseek)
    assert made.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}, "no partial rotary factor"
    assert (made.head_dim, made.num_key_value_heads, made.hidden_act) == (512, 1, "silu")
    assert (made.hidden_size, made.vocab_size, made.num_target_layers) == (4096, 272, 43)


def test_a_target_without_an_mlp_width_gets_three_times_the_hidden_size() -> None:
    target = SimpleNamespace(**vars(tiny.target_config()))
    target.intermediate_size = None
    assert config("qwen3", target).intermediate_size == 96


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_gpt_oss(family: str) -> None:
    """The target's YaRN, without its windows and sinks."""
    made = config(family, hf.GptOssConfig())
    assert made.rope_parameters == {
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096, "rope_theta": 150000.0,
    }  # fmt: skip
    assert (made.head_dim, made.num_attention_heads, made.num_key_value_heads) == (64, 64, 8)
    assert made.layer_types == ["full_attention"] * 2 and made.sliding_window is None


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma4"])
@pytest.mark.parametrize("target", ["gemma4", "gemma4_unified"])
def test_a_target_whose_layers_differ_gives_those_of_its_full_layers(family: str, target: str) -> None:
    text = tiny_targets.FAMILIES[target]().config.get_text_config()
    text.final_logit_softcapping = 20.0
    made = config(family, text)
    own = made.per_layer_config[0] if family == "gemma4" else made
    assert (own.head_dim, own.num_key_value_heads) == (16, 2 if target == "gemma4" else 1)
    assert made.final_logit_softcapping == 20.0, (
        "the target's probabilities are of capped logits, whatever the layers"
    )


@each_family
def test_a_window_is_of_every_layer(family: str) -> None:
    made = config(family, sliding_window=8)
    assert made.layer_types == ["sliding_attention"] * 2 and made.sliding_window == 8
    assert config(family).layer_types == ["full_attention"] * 2
    if family != "gemma4":
        assert config(family).sliding_window is None
