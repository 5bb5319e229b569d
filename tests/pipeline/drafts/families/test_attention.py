"""Compares the three backends with the rule of which query sees which key, written by hand."""

import pytest
import torch
from tiny_errors import refused

from pipeline.drafts.families.attention import Shape, attend, plan_attention

ROWS = torch.tensor([0, 0, 0, 1, 2, 2])
ANCHORS = torch.tensor([0, 3, 9, 5, 1, 11])
HEADS, KV, DIM, CONTEXT = 4, 2, 8, 12
# A block in one pass, and the third token of a chain; each also with a window of four positions.
SHAPES = [
    Shape(3, 3),
    Shape(3, 3, window=4),
    Shape(1, 3, first=2),
    Shape(1, 3, first=2, window=4),
    Shape(1, 1),
]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def tensors(shape: Shape, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Keys and values of the context [3, S, kv, d]; q [6, Q, heads, d]; keys and values of the blocks [6, K, kv, d]."""
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(6, shape.queries, HEADS, DIM, generator=g)
    context = [torch.randn(3, CONTEXT, KV, DIM, generator=g) for _ in range(2)]
    return *context, q, *(torch.randn(6, shape.keys, KV, DIM, generator=g) for _ in range(2))


def run(backend: str, shape: Shape, *values: torch.Tensor) -> torch.Tensor:
    return attend(plan_attention(ROWS, ANCHORS, CONTEXT, shape, backend), *values, DIM**-0.5)


def by_hand(shape: Shape, k_ctx, v_ctx, q, k, v) -> torch.Tensor:
    """One query at a time: a softmax over the context that it may see and over its own block's keys."""
    out = torch.empty_like(q)
    for n in range(len(ROWS)):
        row, anchor = int(ROWS[n]), int(ANCHORS[n])
        for i in range(shape.queries):
            own = anchor + shape.first + i
            seen = [c for c in range(anchor) if shape.window is None or c > own - shape.window]
            keys = torch.cat([k_ctx[row, seen], k[n]]).repeat_interleave(HEADS // KV, 1)
            values = torch.cat([v_ctx[row, seen], v[n]]).repeat_interleave(HEADS // KV, 1)
            weights = (torch.einsum("hd,khd->hk", q[n, i], keys) * DIM**-0.5).softmax(-1)
            out[n, i] = torch.einsum("hk,khd->hd", weights, values)
    return out


@each_shape
@pytest.mark.parametrize("backend", ["dense", "grouped", "flex"])
def test_every_backend_follows_the_rule(backend: str, shape: Shape) -> None:
    """Pitfall 27: uneven batches are finite and equal on every backend (flex has no backward pass on a CPU)."""
    values = tensors(shape)
    with torch.no_grad():
        got = run(backend, shape, *values)
    assert torch.allclose(got, by_hand(shape, *values), atol=1e-5)


@each_shape
def test_gradients_of_grouped_equal_dense(shape: Shape) -> None:
    for_each = {}
    for backend in ("dense", "grouped"):
        values = [x.requires_grad_() for x in tensors(shape)]
        run(backend, shape, *values).square().sum().backward()
        for_each[backend] = [x.grad for x in values]
    for expected, got in zip(for_each["dense"], for_each["grouped"], strict=True):
        assert torch.allclose(expected, got, atol=1e-4)


def test_what_a_block_sees_of_the_context() -> None:
    """A block at anchor 5 with slots 5 .. 7 sees 0 .. 4 of the context, and with a window only the last of these."""
    anchor = torch.tensor([5])
    assert Shape(3, 3).seen(anchor, 7)[0].int().tolist() == [[1, 1, 1, 1, 1, 0, 0]] * 3
    assert Shape(3, 3, window=4).seen(anchor, 7)[0].int().tolist() == [
        [0, 0, 1, 1, 1, 0, 0],  # the slot at 5 sees 2, 3, 4 and itself
        [0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 0, 0],
    ]
    assert Shape(1, 3, first=2, window=4).seen(anchor, 7)[0].int().tolist() == [[0, 0, 0, 0, 1, 0, 0]]
    assert not Shape(2, 2, window=2).seen(anchor, 7)[0, 1].any(), (
        "at 6 the window holds 5 and 6: the block alone"
    )


def test_nothing_at_or_after_the_anchor_is_seen() -> None:
    """Pitfall 24, bit for bit: the content of later positions has no effect."""
    shape = Shape(3, 3)
    k_ctx, v_ctx, q, k, v = tensors(shape)
    others = [x.clone() for x in (k_ctx, v_ctx)]
    for x in others:
        x[0, 3:] = 1e3
    for backend in ("dense", "grouped"):
        before = run(backend, shape, k_ctx, v_ctx, q, k, v)
        after = run(backend, shape, *others, q, k, v)
        assert torch.equal(before[:2], after[:2]) and torch.equal(before[3:], after[3:])
        assert not torch.allclose(before[2], after[2])


@pytest.mark.parametrize("backend", ["dense", "grouped", "flex"])
def test_a_sequence_without_blocks(backend: str) -> None:
    rows, anchors, shape = torch.tensor([0, 2, 2]), torch.tensor([4, 1, 6]), Shape(3, 3)
    k_ctx, v_ctx, q, k, v = tensors(shape)
    part = k_ctx, v_ctx, q[:3], k[:3], v[:3]
    out = attend(plan_attention(rows, anchors, CONTEXT, shape, backend), *part, DIM**-0.5)
    alone = attend(plan_attention(rows[1:] * 0, anchors[1:], CONTEXT, shape, backend), k_ctx[2:], v_ctx[2:],
                   q[1:3], k[1:3], v[1:3], DIM**-0.5)  # fmt: skip
    assert torch.allclose(out[1:], alone, atol=1e-6)


def test_more_blocks_than_a_group_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.drafts.families.attention.GROUP_BLOCKS", 2)
    shape = Shape(3, 3)
    plan = plan_attention(ROWS, ANCHORS, CONTEXT, shape, "grouped")
    assert [(g.row, g.first, g.last, g.context) for g in plan.groups] == [
        (0, 0, 2, 3), (0, 2, 3, 9), (1, 3, 4, 5), (2, 4, 6, 11),
    ]  # fmt: skip
    values = tensors(shape)
    assert torch.allclose(attend(plan, *values, DIM**-0.5), by_hand(shape, *values), atol=1e-5)


def test_unknown_backend_is_named() -> None:
    with refused(ValueError, "'grouped'", "'sparse'"):
        plan_attention(ROWS, ANCHORS, CONTEXT, Shape(3, 3), "sparse")
