"""Attention of blocks over the target's context: three backends with equal results.

A slot of a block at anchor a sees only context positions < a of its own sequence and every key of its own block
(design.md, "Block"). With a sliding window it sees only the last of those context positions. The N blocks are in one
flat list, ordered by sequence and then by anchor. A block has Q queries and K keys of its own. If a block is drafted in
one pass, Q = K = G; if it is drafted token by token, the k-th token has Q = 1 and K = k.

``dense``    one SDPA call with a full mask; it states the rule directly.
``grouped``  one SDPA call per group of neighbouring anchors, with the context up to the group's last anchor. It is
             several times cheaper on a CPU, where flex_attention has no backward pass.
``flex``     flex_attention with a block mask, for GPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

GROUP_BLOCKS = 64
BACKENDS = ("dense", "grouped", "flex")


@dataclass(frozen=True)
class BlockGroup:
    """Blocks ``first`` .. ``last`` - 1 of one sequence, their context length, and their mask [n*Q, context + n*K]."""

    row: int
    first: int
    last: int
    context: int
    mask: Tensor


@dataclass(frozen=True)
class Shape:
    """The attention of one block: Q = ``queries`` at positions anchor + first + (0 .. Q-1), and K = ``keys``.

    A query sees the positions that lie less than ``window`` before its own; None means all.
    """

    queries: int
    keys: int
    first: int = 0
    window: int | None = None

    def seen(self, anchors: Tensor, context: int) -> Tensor:
        """bool [.., Q, context]: which context positions the queries of blocks at ``anchors`` [..] see."""
        columns = torch.arange(context, device=anchors.device)
        seen = (columns < anchors[..., None, None]).expand(*anchors.shape, self.queries, context)
        if self.window is None:
            return seen
        own = anchors[..., None] + self.first + torch.arange(self.queries, device=anchors.device)
        return seen & (columns > own[..., None] - self.window)


@dataclass(frozen=True)
class AttentionPlan:
    """The parts of a batch's attention that are the same for every layer."""

    backend: str
    shape: Shape
    groups: tuple[BlockGroup, ...] = ()
    grid: Tensor | None = None  # int64 [B, A]: flat index of each block, 0 for padding (dense, flex)
    filled: Tensor | None = None  # bool [B, A]: False for padding
    mask: Any = None  # bool [B, 1, A*Q, S + A*K] (dense) or a BlockMask (flex)


def default_backend(device: torch.device) -> str:
    """``flex`` on a GPU, ``grouped`` elsewhere."""
    return "flex" if device.type == "cuda" else "grouped"


def plan_attention(
    rows: Tensor, anchors: Tensor, context_length: int, shape: Shape, backend: str
) -> AttentionPlan:
    """The plan for N blocks: ``rows`` [N] are their sequences, ascending; ``anchors`` [N] ascend within a row."""
    if backend not in BACKENDS:
        raise ValueError(f"attention: expected one of {BACKENDS}, got {backend!r}")
    if backend == "grouped":
        return AttentionPlan(backend, shape, _groups(rows, anchors, shape))
    grid, filled = _grid(rows)
    padded = torch.where(filled, anchors[grid], 0)  # [B, A]
    mask = (_flex_mask if backend == "flex" else _dense_mask)(padded, filled, context_length, shape)
    return AttentionPlan(backend, shape, (), grid, filled, mask)


def attend(
    plan: AttentionPlan, k_ctx: Tensor, v_ctx: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float
) -> Tensor:
    """Attention output [N, Q, heads, d].

    ``q`` [N, Q, heads, d], ``k`` and ``v`` [N, K, kv, d] are the blocks'; ``k_ctx`` and ``v_ctx`` [B, S, kv, d] are
    the context's.
    """
    if plan.backend != "grouped":
        return _attend_padded(plan, k_ctx, v_ctx, q, k, v, scale)
    outputs = []
    for group in plan.groups:
        part = slice(group.first, group.last)
        keys = torch.cat([k_ctx[group.row, : group.context], k[part].flatten(0, 1)])
        values = torch.cat([v_ctx[group.row, : group.context], v[part].flatten(0, 1)])
        out = sdpa(q[part].flatten(0, 1)[None], keys[None], values[None], group.mask, scale)
        outputs.append(out[0].unflatten(0, (-1, plan.shape.queries)))
    return torch.cat(outputs) if outputs else torch.zeros_like(q)


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """SDPA on tensors [B, length, heads, d], of which k and v may have fewer heads; returns the layout of ``q``."""
    repeats = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if repeats > 1:
        k, v = (x.repeat_interleave(repeats, 1) for x in (k, v))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(1, 2)


def attend_each(
    q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Sequence[Tensor], masks: Sequence[Tensor | None]
) -> Tensor:
    """Attention output [R, Q, heads, d] of R blocks with contexts of different lengths, one SDPA call for each block.

    ``q`` [R, Q, heads, d], ``k`` and ``v`` [R, K, kv, d] are the blocks'. ``seen[r]`` [2, 1, S_r, kv, d] are keys and
    values of context r; ``masks[r]`` is bool [Q, S_r + K] or None.
    """
    outputs = []
    for r, (context, mask) in enumerate(zip(seen, masks, strict=True)):
        keys, values = torch.cat([context[0], k[r : r + 1]], 1), torch.cat([context[1], v[r : r + 1]], 1)
        outputs.append(sdpa(q[r : r + 1], keys, values, mask, scale))
    return torch.cat(outputs)


def _groups(rows: Tensor, anchors: Tensor, shape: Shape) -> tuple[BlockGroup, ...]:
    rows_list, anchors_list = rows.tolist(), anchors.tolist()
    groups, first = [], 0
    while first < len(rows_list):
        last = first + 1
        while last < len(rows_list) and rows_list[last] == rows_list[first] and last - first < GROUP_BLOCKS:
            last += 1
        context = anchors_list[last - 1]
        seen = shape.seen(anchors[first:last], context).flatten(0, 1)
        mask = torch.cat([seen, _own_blocks(last - first, shape, anchors.device)], dim=1)
        groups.append(BlockGroup(rows_list[first], first, last, context, mask))
        first = last
    return tuple(groups)


def _own_blocks(count: int, shape: Shape, device: torch.device) -> Tensor:
    """bool [n*Q, n*K] for n = ``count`` blocks: a query sees the keys of its own block."""
    own = torch.eye(count, dtype=torch.bool, device=device)
    return own.repeat_interleave(shape.queries, 0).repeat_interleave(shape.keys, 1)


def _grid(rows: Tensor) -> tuple[Tensor, Tensor]:
    """On a grid [B, A]: each block's flat index, and whether there is a block. B ends at the last row with blocks."""
    count = torch.bincount(rows)
    offset = count.cumsum(0) - count
    column = torch.arange(int(count.max()), device=rows.device)
    filled = column < count[:, None]
    return torch.where(filled, offset[:, None] + column, 0), filled


def _dense_mask(anchors: Tensor, filled: Tensor, context_length: int, shape: Shape) -> Tensor:
    """bool [B, 1, A*Q, S + A*K]. Padding blocks see themselves, because a fully masked row would give NaN."""
    seen = shape.seen(anchors, context_length) & filled[..., None, None]  # [B, A, Q, S]
    own = _own_blocks(anchors.shape[1], shape, anchors.device).expand(len(anchors), -1, -1)
    return torch.cat([seen.flatten(1, 2), own], dim=2)[:, None]


def _flex_mask(anchors: Tensor, filled: Tensor, context_length: int, shape: Shape) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    window = context_length + shape.queries + shape.first + 1 if shape.window is None else shape.window

    def rule(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        block = query // shape.queries
        anchor = anchors[row, block]
        near = key > anchor + shape.first + query % shape.queries - window
        seen = (key < anchor) & near & filled[row, block] & (key < context_length)
        own = (key >= context_length) & ((key - context_length) // shape.keys == block)
        return seen | own

    queries, keys = anchors.shape[1] * shape.queries, context_length + anchors.shape[1] * shape.keys
    return create_block_mask(rule, len(anchors), None, queries, keys, device=str(anchors.device))


def _attend_padded(
    plan: AttentionPlan, k_ctx: Tensor, v_ctx: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float
) -> Tensor:
    assert plan.grid is not None and plan.filled is not None
    batch = len(plan.grid)
    queries, keys, values = (x[plan.grid].flatten(1, 2) for x in (q, k, v))  # [B, A*Q or A*K, heads, d]
    keys, values = torch.cat([k_ctx[:batch], keys], 1), torch.cat([v_ctx[:batch], values], 1)
    kernel = sdpa if plan.backend == "dense" else _flex
    blocks: Tensor = kernel(queries, keys, values, plan.mask, scale).unflatten(1, (-1, plan.shape.queries))
    return blocks[plan.filled]


@functools.cache
def _flex_kernel(on_gpu: bool) -> Any:
    """flex_attention; on a GPU it is compiled, because otherwise it keeps the whole score matrix in memory."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if on_gpu else flex_attention


def _flex(q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: float) -> Tensor:
    kernel, parts = _flex_kernel(q.is_cuda), (x.transpose(1, 2) for x in (q, k, v))
    out: Tensor = kernel(*parts, block_mask=mask, scale=scale, enable_gqa=True)
    return out.transpose(1, 2)
