"""Cross-entropy and L1 over a large vocabulary, in chunks of slots, with the gradient formed in the forward pass.

For each supervised slot, p = softmax(h W_head + f W2) is the draft's distribution and q = softmax(t W_head) the
target's (t: the target's final state). The weighted sum

    sum_n w_n (c_ce CE_n + c_l1 |p_n - q_n|_1)        CE_n = -log p_n[label_n]

has the gradient  w (c_ce (p - onehot) + c_l1 p (s - <s, p>)),  s = sign(p - q),  in the logits. Forming it while
a chunk's logits are at hand means that [slots, V] never exists, and that nothing is kept for the backward pass
but gradients of h, f and W2 (the head is frozen). Distributions and divergences are fp32 whatever the products'
type (pitfall 28: in bf16 their gradient is 31 % off near convergence).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Logits whose fp32 passes run together: on a CPU they stay in a core's second-level cache (three times faster than
# whole chunks), on a GPU they bound the memory. The products take whole chunks: with 900 rows instead of 128 a CPU's
# matrix unit is 3.7 times faster, because packing the head is paid once a chunk.
TOGETHER = {"cpu": 400_000, "cuda": 20_000_000}
TINY = 1e-38  # smallest probability whose logarithm is taken


@dataclass(frozen=True)
class Terms:
    """Sums over the slots (weighted) and figures of each slot [n].

    ``total`` carries the gradient. ``tv`` is the total variation |p - q|_1 / 2, None where the distributions were not
    compared. ``agreement`` (equal modes, 0 or 1) is None unless asked for.
    """

    total: Tensor
    ce: Tensor
    l1: Tensor
    tv: Tensor | None
    agreement: Tensor | None


def distribution_loss(
    hidden: Tensor,
    features: Tensor | None,
    w2: Tensor | None,
    head: Tensor,
    target_hidden: Tensor,
    labels: Tensor,
    weights: Tensor,
    ce: float,
    l1: float,
    chunk: int = 512,
    compare: bool = True,
    agreement: bool = False,
) -> Terms:
    """The weighted sum of the module's docstring over n slots.

    hidden [n, H]; features [n, r] and w2 [V, r] (or None, None without a sequential head); head [V, H] frozen;
    target_hidden [n, H]; labels int64 [n]; weights fp32 [n]. ``chunk``: slots whose [chunk, V] logits exist at a time.
    ``compare``: whether the target's distribution is formed although ``l1`` is 0 (a third of the products).
    Matrix products run in the autocast type where autocast is on, else in hidden's type.
    """
    compare = compare or agreement or l1 != 0
    total, ce_sum, l1_sum, tv, agree = _Distribution.apply(
        hidden, features, w2, head, target_hidden, labels, weights, ce, l1, chunk, compare, agreement,
        torch.is_grad_enabled(), _matmul_dtype(hidden),
    )  # fmt: skip
    return Terms(total, ce_sum, l1_sum, tv if compare else None, agree if agreement else None)


def _matmul_dtype(x: Tensor) -> torch.dtype:
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class _Distribution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, features: Tensor | None, w2: Tensor | None, head: Tensor, target_hidden: Tensor,
        labels: Tensor, weights: Tensor, ce: float, l1: float, chunk: int, compare: bool, agreement: bool,
        with_gradient: bool, dtype: torch.dtype,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        h, t, w = hidden.to(dtype), target_hidden.to(dtype), head.to(dtype)
        f = None if features is None else features.to(dtype)
        m = None if w2 is None else w2.to(dtype)
        figures = hidden.new_zeros(3, len(h), dtype=torch.float32)  # CE, L1, agreement
        grads = [torch.empty_like(h) if with_gradient else None, None, None]
        if with_gradient and f is not None and m is not None:
            grads[1] = torch.empty_like(f)
            grads[2] = torch.zeros(w2.shape, dtype=torch.float32, device=h.device)  # type: ignore[union-attr]
        for first in range(0, len(h), chunk):
            part = slice(first, first + chunk)
            logits = torch.mm(h[part], w.t())
            if f is not None and m is not None:
                logits.addmm_(f[part], m.t())
            target = torch.mm(t[part], w.t()) if compare else None
            gradient = _elementwise(
                logits,
                target,
                labels[part],
                weights[part],
                ce,
                l1,
                figures[:, part],
                agreement,
                with_gradient,
            )
            if gradient is None:
                continue
            torch.mm(gradient, w, out=grads[0][part])  # type: ignore[index]
            if f is not None and m is not None:
                torch.mm(gradient, m, out=grads[1][part])  # type: ignore[index]
                grads[2] += torch.mm(gradient.t(), f[part])  # type: ignore[operator]
        ctx.gradients = grads
        ctx.dtypes = [None if x is None else x.dtype for x in (hidden, features, w2)]
        ce_sum, l1_sum = (figures[:2] * weights).sum(1)
        tv, agree = figures[1] / 2, figures[2]
        total = ce * ce_sum + l1 * l1_sum
        for output in (ce_sum, l1_sum, tv, agree):
            ctx.mark_non_differentiable(output)
        return total, ce_sum, l1_sum, tv, agree

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [
            None if g is None else (g * upstream[0].to(g.dtype)).to(dtype)
            for g, dtype in zip(ctx.gradients, ctx.dtypes, strict=True)
        ]
        return (*scaled, *(None,) * 11)


def _elementwise(
    logits: Tensor, target: Tensor | None, labels: Tensor, weights: Tensor,
    ce: float, l1: float, figures: Tensor, agreement: bool, with_gradient: bool,
) -> Tensor | None:  # fmt: skip
    """Fill ``figures`` [3, c] and return the gradient in the logits [c, V] in their type (written over them)."""
    step = max(1, TOGETHER.get(logits.device.type, TOGETHER["cuda"]) // logits.shape[1])
    for first in range(0, len(logits), step):
        rows = slice(first, first + step)
        z = logits[rows].float()
        if agreement and target is not None:
            figures[2, rows] = (z.argmax(-1) == target[rows].argmax(-1)).float()
        label = labels[rows, None]
        p = torch.softmax(z, -1)
        figures[0, rows] = -p.gather(1, label).squeeze(1).clamp(min=TINY).log()
        sign = None
        if target is not None:
            q = torch.softmax(target[rows].float(), -1)
            difference = torch.sub(p, q, out=q)
            figures[1, rows] = torch.linalg.vector_norm(difference, 1, -1)
            sign = difference.sign_()
        if with_gradient:
            logits[rows] = _row_gradient(p, sign, label, weights[rows, None], ce, l1)
    return logits if with_gradient else None


def _row_gradient(
    p: Tensor, sign: Tensor | None, label: Tensor, weight: Tensor, ce: float, l1: float
) -> Tensor:
    """w (c_ce (p - onehot) + c_l1 p (s - <s, p>)) for a few rows; overwrites ``p`` and ``sign``."""
    if sign is not None and l1:
        mean = torch.linalg.vecdot(sign, p)[:, None]
        p.mul_(sign.mul_(l1 * weight).add_(weight * (ce - l1 * mean)))
    else:
        p.mul_(ce * weight)
    return p.scatter_add_(1, label, -ce * weight)
