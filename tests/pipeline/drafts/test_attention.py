import pytest
import torch

from pipeline.drafts.attention import attend, plan_attention

ROWS = torch.tensor([0, 0, 0, 1, 2, 2])
ANCHORS = torch.tensor([0, 3, 9, 5, 1, 11])
GAMMA, HEADS, KV, DIM, CONTEXT = 3, 4, 2, 8, 12


def tensors(seed: int = 0) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    blocks = [torch.randn(6, GAMMA, heads, DIM, generator=g) for heads in (HEADS, KV, KV)]
    context = [torch.randn(3, CONTEXT, KV, DIM, generator=g) for _ in range(2)]
    return blocks[0], context[0], context[1], blocks[1], blocks[2]


def run(backend: str, *values: torch.Tensor) -> torch.Tensor:
    return attend(plan_attention(ROWS, ANCHORS, CONTEXT, GAMMA, backend), *values, DIM**-0.5)


@pytest.mark.parametrize("backend", ["grouped", "flex"])
def test_backends_are_equal(backend: str) -> None:
    """Pitfall 27: uneven batches are finite and equal on every backend (flex forward only: no CPU backward)."""
    with torch.no_grad():
        assert torch.allclose(run("dense", *tensors()), run(backend, *tensors()), atol=1e-5)


def test_gradients_of_grouped_equal_dense() -> None:
    for_each = {}
    for backend in ("dense", "grouped"):
        values = [x.requires_grad_() for x in tensors()]
        run(backend, *values).square().sum().backward()
        for_each[backend] = [x.grad for x in values]
    for expected, got in zip(for_each["dense"], for_each["grouped"], strict=True):
        assert torch.allclose(expected, got, atol=1e-4)


def test_a_block_sees_its_context_and_itself_only() -> None:
    """The rule by hand: softmax over context positions < anchor and the block's own slots."""
    q, k_ctx, v_ctx, k, v = tensors()
    out = run("grouped", q, k_ctx, v_ctx, k, v)
    keys = torch.cat([k_ctx[0, :3], k[1]]).repeat_interleave(HEADS // KV, 1)  # block 1: sequence 0, anchor 3
    values = torch.cat([v_ctx[0, :3], v[1]]).repeat_interleave(HEADS // KV, 1)
    scores = torch.einsum("ghd,khd->hgk", q[1], keys) * DIM**-0.5
    expected = torch.einsum("hgk,khd->ghd", scores.softmax(-1), values)
    assert torch.allclose(out[1], expected, atol=1e-5)


def test_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match="expected one of .* got 'sparse'"):
        plan_attention(ROWS, ANCHORS, CONTEXT, GAMMA, "sparse")
