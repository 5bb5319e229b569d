"""Cross-entropy and L1 over a large vocabulary, in chunks of slots, with the gradient formed in the forward pass.

For each supervised slot, p = softmax(cap(h W_head) + f W2) is the draft's distribution, q = softmax(cap(t W_target))
the target's (t: its final state; cap: Gemma's soft cap c tanh(x / c), the identity elsewhere). The weighted sum

    sum_n w_n (c_ce CE_n + c_l1 |p_n - q_n|_1 + c_soft H(q_n, p_n))      CE_n = -log p_n[label_n]
                                                                         H(q, p) = -sum_v q_v log p_v

has the gradient  w (c_ce (p - onehot) + c_l1 p (s - <s, p>) + c_soft (<1, q> p - q)),  s = sign(p - q),  in the logits.
Forming it while a chunk's logits are at hand means that [slots, V] never exists, and that nothing is kept for the
backward pass but gradients of h, f and W2 (the head is frozen). Distributions and divergences are fp32 whatever the
products' type (pitfall 28: in bf16 their gradient is 31 % off near convergence).

With a reduced draft vocabulary p lives on D of the V tokens and is 0 elsewhere: q is normalised over all V, its mass
outside counts in full in |p - q|_1, and a label outside has no cross-entropy.
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
class Output:
    """What turns states into distributions; all of it frozen.

    ``head`` [D, H] of the draft, ``target_head`` [V, H] (the same tensor at full vocabulary), ``ids`` int64 [D] the
    tokens of a reduced draft vocabulary (None: D = V), ``softcap`` c or None.
    """

    head: Tensor
    target_head: Tensor
    ids: Tensor | None = None
    softcap: float | None = None

    def indices(self, tokens: Tensor) -> Tensor:
        """Rows of ``head`` that stand for ``tokens`` int64 [..]; -1 where there is none."""
        if self.ids is None:
            return tokens
        place = torch.full((len(self.target_head),), -1, device=tokens.device)
        place[self.ids] = torch.arange(len(self.ids), device=tokens.device)
        return place[tokens]


@dataclass(frozen=True)
class Coefficients:
    """Weights of the terms, and what else is wanted.

    ``compare``: form the target's distribution although no term needs it (a third of the products).
    ``agreement``: whether both modes are equal.
    """

    ce: float
    l1: float
    soft: float = 0.0
    compare: bool = True
    agreement: bool = False

    @property
    def needs_target(self) -> bool:
        """Whether the target's logits are formed."""
        return self.compare or self.agreement or self.l1 != 0 or self.soft != 0


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
    output: Output,
    target_hidden: Tensor,
    labels: Tensor,
    weights: Tensor,
    coefficients: Coefficients,
    chunk: int = 512,
) -> Terms:
    """The weighted sum of the module's docstring over n slots.

    hidden [n, H]; features [n, r] and w2 [D, r] (or None, None without a sequential head); target_hidden [n, H];
    labels int64 [n], target ids; weights fp32 [n]. ``chunk``: slots whose [chunk, V] logits exist at a time.
    Matrix products run in the autocast type where autocast is on, else in hidden's type.
    """
    total, ce_sum, l1_sum, tv, agree = _Distribution.apply(
        hidden, features, w2, output, target_hidden, output.indices(labels), weights, coefficients, chunk,
        torch.is_grad_enabled(), _matmul_dtype(hidden),
    )  # fmt: skip
    return Terms(
        total,
        ce_sum,
        l1_sum,
        tv if coefficients.needs_target else None,
        agree if coefficients.agreement else None,
    )


def _matmul_dtype(x: Tensor) -> torch.dtype:
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class _Distribution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, features: Tensor | None, w2: Tensor | None, output: Output, target_hidden: Tensor,
        labels: Tensor, weights: Tensor, coefficients: Coefficients, chunk: int, with_gradient: bool,
        dtype: torch.dtype,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        h, t = hidden.to(dtype), target_hidden.to(dtype)
        w, w_target = output.head.to(dtype), output.target_head.to(dtype)
        f, m = (None if x is None else x.to(dtype) for x in (features, w2))
        figures = hidden.new_zeros(3, len(h), dtype=torch.float32)  # CE, L1, agreement
        grads: list[Tensor | None] = _gradients(h, f, w2) if with_gradient else [None, None, None]
        total = hidden.new_zeros((), dtype=torch.float32)
        for first in range(0, len(h), chunk):
            part = slice(first, first + chunk)
            logits, slope = _logits(h[part], w, output.softcap, with_gradient)
            if f is not None and m is not None:
                logits.addmm_(f[part], m.t())
            target = (
                _logits(t[part], w_target, output.softcap, False)[0] if coefficients.needs_target else None
            )
            rows = _Rows(labels[part], weights[part], coefficients, output.ids, with_gradient)
            total += rows.run(logits, target, figures[:, part])
            if with_gradient:
                _collect(logits, slope, part, w, f, m, grads)
        ctx.gradients = grads
        ctx.dtypes = [None if x is None else x.dtype for x in (hidden, features, w2)]
        ce_sum, l1_sum = (figures[:2] * weights).sum(1)
        tv, agree = figures[1] / 2, figures[2]
        for value in (ce_sum, l1_sum, tv, agree):
            ctx.mark_non_differentiable(value)
        return total, ce_sum, l1_sum, tv, agree

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [
            None if g is None else (g * upstream[0].to(g.dtype)).to(dtype)
            for g, dtype in zip(ctx.gradients, ctx.dtypes, strict=True)
        ]
        return (*scaled, *(None,) * 8)


def _gradients(h: Tensor, f: Tensor | None, w2: Tensor | None) -> list[Tensor | None]:
    """Room for the gradients of hidden, features and w2 (summed over chunks in fp32)."""
    if f is None or w2 is None:
        return [torch.empty_like(h), None, None]
    return [
        torch.empty_like(h),
        torch.empty_like(f),
        torch.zeros(w2.shape, dtype=torch.float32, device=h.device),
    ]


def _logits(h: Tensor, head: Tensor, softcap: float | None, with_slope: bool) -> tuple[Tensor, Tensor | None]:
    """cap(h W) [c, V] and, for the gradient, the slope of the cap (None without one)."""
    logits = torch.mm(h, head.t())
    if softcap is None:
        return logits, None
    bent = logits.div_(softcap).tanh_()
    slope = 1 - bent.square() if with_slope else None
    return bent.mul_(softcap), slope


def _collect(
    gradient: Tensor, slope: Tensor | None, part: slice, w: Tensor, f: Tensor | None, m: Tensor | None,
    grads: list[Tensor | None],
) -> None:  # fmt: skip
    """Turn the gradient in a chunk's logits [c, D] into those of hidden, features and w2."""
    hidden, features, matrix = grads
    assert hidden is not None
    if f is not None and m is not None and features is not None and matrix is not None:
        torch.mm(gradient, m, out=features[part])
        matrix += torch.mm(gradient.t(), f[part])
    torch.mm(gradient if slope is None else gradient.mul_(slope), w, out=hidden[part])


@dataclass(frozen=True)
class _Rows:
    """The fp32 passes over a chunk's logits."""

    labels: Tensor  # int64 [c], -1 outside the draft vocabulary
    weights: Tensor  # fp32 [c]
    coefficients: Coefficients
    ids: Tensor | None
    with_gradient: bool

    def run(self, logits: Tensor, target: Tensor | None, figures: Tensor) -> Tensor:
        """Fill ``figures`` [3, c], write the gradient over ``logits`` [c, D]; the chunk's part of the total."""
        step = max(1, TOGETHER.get(logits.device.type, TOGETHER["cuda"]) // logits.shape[1])
        total = figures.new_zeros(())
        for first in range(0, len(logits), step):
            rows = slice(first, first + step)
            total += self._part(logits, None if target is None else target[rows], rows, figures)
        return total

    def _part(self, logits: Tensor, target: Tensor | None, rows: slice, figures: Tensor) -> Tensor:
        c, weight = self.coefficients, self.weights[rows]
        z = logits[rows].float()
        if c.agreement and target is not None:
            figures[2, rows] = self._agreement(z, target)
        known = self.labels[rows] >= 0
        label = self.labels[rows].clamp(min=0)[:, None]
        p = torch.softmax(z, -1)
        figures[0, rows] = -p.gather(1, label).squeeze(1).clamp(min=TINY).log() * known
        total = c.ce * (figures[0, rows] * weight).sum()
        mass = q = sign = None
        if target is not None:
            q = self._target(target.float())
            mass = q.sum(-1) if self.ids is not None or c.soft else torch.ones_like(weight)
            if c.soft:
                total += c.soft * (weight * -(q * torch.log_softmax(z, -1)).sum(-1)).sum()
            difference = p - q if c.soft else torch.sub(p, q, out=q)
            figures[1, rows] = torch.linalg.vector_norm(difference, 1, -1) + (
                1 - mass if self.ids is not None else 0
            )
            total += c.l1 * (figures[1, rows] * weight).sum()
            sign = difference.sign_()
        if self.with_gradient:
            logits[rows] = self._gradient(p, q, sign, mass, label, weight[:, None], (weight * known)[:, None])
        return total

    def _agreement(self, z: Tensor, target: Tensor) -> Tensor:
        mode = z.argmax(-1)
        return ((mode if self.ids is None else self.ids[mode]) == target.argmax(-1)).float()

    def _target(self, logits: Tensor) -> Tensor:
        """The target's probabilities [c, D] of the tokens that the draft has, normalised over all of them."""
        q = torch.softmax(
            logits, -1
        )  # one fused pass; picking columns first would need a log-sum-exp of four
        return q if self.ids is None else q[:, self.ids]

    def _gradient(
        self, p: Tensor, q: Tensor | None, sign: Tensor | None, mass: Tensor | None, label: Tensor, weight: Tensor,
        label_weight: Tensor,
    ) -> Tensor:  # fmt: skip
        """The docstring's gradient for a few rows; overwrites ``p`` and ``sign``."""
        c = self.coefficients
        scale = c.ce * label_weight
        if c.soft and q is not None and mass is not None:
            scale = scale + c.soft * weight * mass[:, None]
        if sign is not None and c.l1:
            mean = torch.linalg.vecdot(sign, p)[:, None]
            p.mul_(sign.mul_(c.l1 * weight).add_(scale - c.l1 * weight * mean))
        else:
            p.mul_(scale)
        if c.soft and q is not None:
            p.addcmul_(q, weight, value=-c.soft)
        return p.scatter_add_(1, label, -c.ce * label_weight)
