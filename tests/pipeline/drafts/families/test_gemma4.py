import pytest
import tiny
import tiny_targets
import torch
from tiny_layers import attend_itself, config, unified

from pipeline.drafts.families import gemma4, llama, qwen3


@torch.no_grad()
def test_gemma4_attention() -> None:
    """The scale is 1, values are normed without a weight, and keys and values share a projection if the target's do."""
    layer, rotary = (
        gemma4.DecoderLayer(config("gemma4", unified()), 0),
        gemma4.Rotary(config("gemma4", unified())),
    )
    attention, x = layer.self_attn, torch.randn(3, 32)
    assert attention.scale == 1.0 and attention.v_proj is None
    assert not list(attention.v_norm.parameters())
    keys, values = attention.keys_values(x, rotary(x, torch.tensor([0, 1, 2]), "full_attention"))
    assert keys.shape == values.shape == (3, 1, 16), "the full layers' one head of width 16"
    assert torch.allclose(values.square().mean(-1), torch.ones(3, 1), atol=1e-2)
    assert torch.allclose(keys[0], values[0], atol=1e-6), (
        "at position 0 nothing is turned, and k_norm starts at one"
    )
    plain = gemma4.DecoderLayer(config("gemma4"), 0).self_attn
    assert plain.v_proj is not None, "a target with a projection of its own for values"
    windowed = config("gemma4", unified(), sliding_window=8)
    assert gemma4.DecoderLayer(windowed, 1).self_attn.v_proj is not None, "k = v in full layers only"


@torch.no_grad()
def test_gemma4_scales_each_layer() -> None:
    layer, rotary = gemma4.DecoderLayer(config("gemma4"), 0), gemma4.Rotary(config("gemma4"))
    x = torch.randn(1, 2, 32)
    tables = rotary(x, torch.tensor([[0, 1]]), "full_attention")
    whole = layer(x, tables, attend_itself)
    layer.layer_scalar.fill_(0.25)
    assert torch.allclose(layer(x, tables, attend_itself), whole * 0.25, atol=1e-6)
    assert "layer_scalar" in layer.state_dict()


def test_only_gemma_scales_embeddings() -> None:
    assert gemma4.embedding_scale(config("gemma4")) == pytest.approx(5.656854)  # the square root of 32
    assert qwen3.embedding_scale(config("qwen3")) == llama.embedding_scale(config("llama")) == 1.0
    draft, ids = tiny.draft(family="gemma4"), torch.tensor([3, 7])
    assert torch.allclose(draft.embed(ids), draft.embed_tokens.weight[ids] * 32**0.5, atol=1e-5)


def test_gemma4_keeps_the_rotary_settings_of_both_layer_types() -> None:
    made = config("gemma4", tiny_targets.gemma4().config.get_text_config())
    assert made.rope_parameters["full_attention"] == {
        "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0,
    }  # fmt: skip
    assert made.rope_parameters["sliding_attention"]["rope_theta"] == 10000.0
    for name in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        assert getattr(made, name) == 0, name
