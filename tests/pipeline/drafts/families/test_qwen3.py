import pytest
import torch
from tiny_layers import config

from pipeline.drafts.families import qwen3


@torch.no_grad()
def test_qwen3_norms_queries_and_keys_over_each_head() -> None:
    layer, rotary, x = (
        qwen3.DecoderLayer(config("qwen3"), 0),
        qwen3.Rotary(config("qwen3")),
        torch.randn(3, 32),
    )
    tables = rotary(x, torch.tensor([0, 1, 2]), "full_attention")
    keys, values = layer.self_attn.keys_values(x, tables)
    assert keys.shape == values.shape == (3, 2, 8) and layer.self_attn.queries(x, tables).shape == (3, 4, 8)
    assert torch.allclose(keys.square().mean(-1), torch.ones(3, 2), atol=1e-2)
    assert layer.self_attn.scale == pytest.approx(8**-0.5)
