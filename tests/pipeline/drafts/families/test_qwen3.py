import tiny
import torch

from pipeline.drafts.families.qwen3 import Attention, Rotary, rotate


def test_rotary_frequencies_are_never_rounded() -> None:
    """Pitfall 32: a model cast to bf16 keeps its position tables."""
    rotary = Rotary(tiny.target_config())
    before = rotary.table.inv_freq.clone()
    rotary.to(torch.bfloat16)
    assert torch.equal(rotary.table.inv_freq, before)


def test_position_zero_is_not_turned_and_lengths_are_kept() -> None:
    rotary, x = Rotary(tiny.target_config()), torch.randn(2, 4, 8)
    turned = rotate(x, rotary(x, torch.tensor([0, 5])))
    assert torch.equal(turned[0], x[0])
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-5)


def test_queries_and_keys_are_normed_per_head() -> None:
    attention, rotary = Attention(tiny.target_config()), Rotary(tiny.target_config())
    x = torch.randn(3, 32)
    tables = rotary(x, torch.tensor([0, 1, 2]))
    keys, values = attention.keys_values(x, tables)
    assert keys.shape == values.shape == (3, 2, 8) and attention.queries(x, tables).shape == (3, 4, 8)
    assert torch.allclose(keys.square().mean(-1), torch.ones(3, 2), atol=1e-2)
