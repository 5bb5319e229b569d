"""Cross-entropy and L1 over a large vocabulary, in chunks of slots; the forward pass also computes the gradient.

For each supervised slot, p = softmax(cap(h W_head) + f W2) is the draft's distribution and q = softmax(cap(t W_target))
is the target's. t is the target's final state; cap is Gemma's soft cap c tanh(x / c), for other models the identity.
The weighted sum

    sum_n w_n (c_ce CE_n + c_l1 |p_n - q_n|_1 + c_soft H(q_n, p_n))      CE_n = -log p_n[label_n]
                                                                         H(q, p) = -sum_v q_v log p_v

has the gradient  w (c_ce (p - onehot) + c_l1 p (s - <s, p>) + c_soft (<1, q> p - q)),  s = sign(p - q),  in the logits.
It is computed while the logits of a chunk exist. So a tensor [slots, V] is never needed, and the backward pass needs
only the gradients of h, f and W2 (the head is frozen). Distributions and divergences are fp32 whatever the type of the
products is (pitfall 28: in bf16 their gradient is wrong by 31 % near convergence).

With a reduced draft vocabulary, p covers D of the V tokens and is 0 elsewhere. q is normalised over all V; its mass
outside D counts in full in |p - q|_1, and a label outside D has no cross-entropy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# How many logits one fp32 pass takes. On a CPU, so few stay in the second-level cache of a core, which is three times
# faster than a pass over a whole chunk. On a GPU the number bounds the memory. Matrix products take whole chunks: with
# 900 rows instead of 128, a CPU's matrix unit is 3.7 times faster, because it packs the head only once per chunk.
TOGETHER = {"cpu": 400_000, "cuda": 20_000_000}
TINY = 1e-38  # smaller probabilities are raised to this one before the logarithm


@dataclass(frozen=True)
class Output:
    """The frozen tensors that turn states into distributions.

    ``head`` [D, H] is the draft's, ``target_head`` [V, H] the target's (the same tensor at full vocabulary). ``ids``
    int64 [D] are the tokens of a reduced draft vocabulary (None: D = V). ``softcap`` is c, or None for no cap.
    """

    head: Tensor
    target_head: Tensor
    ids: Tensor | None = None
    softcap: float | None = None

    def indices(self, tokens: Tensor) -> Tensor:
        """The rows of ``head`` for ``tokens`` int64 [..]; -1 for a token outside the draft vocabulary."""
        if self.ids is None:
            return tokens
        place = torch.full((len(self.target_head),), -1, device=tokens.device)
        place[self.ids] = torch.arange(len(self.ids), device=tokens.device)
        return place[tokens]


@dataclass(frozen=True)
class Coefficients:
    """The weights of the terms, and which figures are computed in addition.

    ``compare`` computes the target's distribution even if no term needs it; it takes a third of the products.
    ``agreement`` computes whether both distributions have the same mode.
    """

    ce: float
    l1: float
    soft: float = 0.0
    compare: bool = True
    agreement: bool = False

    @property
    def needs_target(self) -> bool:
        """Whether the target's logits are computed."""
        return self.compare or self.agreement or self.l1 != 0 or self.soft != 0


@dataclass(frozen=True)
class Terms:
    """Weighted sums over the slots, and figures of each slot [n].

    ``total`` has the gradient. ``tv`` is the total variation |p - q|_1 / 2, or None if the distributions were not
    compared. ``agreement`` is 1 where the modes are equal, else 0; it is None if ``Coefficients`` does not ask for it.
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
    """The weighted sum in this module's docstring, over n slots.

    hidden [n, H]; features [n, r] and w2 [D, r], both None without a sequential head; target_hidden [n, H]; labels
    int64 [n] are the target's ids; weights fp32 [n]. At any time the logits of only ``chunk`` slots exist. Matrix
    products run in the autocast type if autocast is on, else in the type of ``hidden``.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    apply: Callable[..., tuple[Tensor, ...]] = _Distribution.apply
    total, ce_sum, l1_sum, tv, agree = apply(
        hidden, features, w2, output, target_hidden, output.indices(labels), weights, coefficients, chunk,
        torch.is_grad_enabled(), dtype,
    )  # fmt: skip
    compared = tv if coefficients.needs_target else None
    return Terms(total, ce_sum, l1_sum, compared, agree if coefficients.agreement else None)


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
            target = None
            if coefficients.needs_target:
                target, _ = _logits(t[part], w_target, output.softcap, False)
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
    """Empty tensors for the gradients of hidden, features and w2; that of w2 sums over chunks in fp32."""
    if f is None or w2 is None:
        return [torch.empty_like(h), None, None]
    return [torch.empty_like(h), torch.empty_like(f), torch.zeros_like(w2, dtype=torch.float32)]


def _logits(h: Tensor, head: Tensor, softcap: float | None, with_slope: bool) -> tuple[Tensor, Tensor | None]:
    """cap(h W) [c, V], and the slope of the cap for the gradient (None without a cap)."""
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
    """Turn the gradient of a chunk's logits [c, D] into those of hidden, features and w2."""
    hidden, features, matrix = grads
    assert hidden is not None
    if f is not None and m is not None and features is not None and matrix is not None:
        torch.mm(gradient, m, out=features[part])
        matrix += torch.mm(gradient.t(), f[part])
    torch.mm(gradient if slope is None else gradient.mul_(slope), w, out=hidden[part])


@dataclass(frozen=True)
class _Rows:
    """The fp32 passes over the logits of one chunk."""

    labels: Tensor  # int64 [c]; -1 outside the draft vocabulary
    weights: Tensor  # fp32 [c]
    coefficients: Coefficients
    ids: Tensor | None
    with_gradient: bool

    def run(self, logits: Tensor, target: Tensor | None, figures: Tensor) -> Tensor:
        """Return the chunk's part of the total, fill ``figures`` [3, c], write the gradient into ``logits`` [c, D]."""
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
            mode = z.argmax(-1)
            figures[2, rows] = ((mode if self.ids is None else self.ids[mode]) == target.argmax(-1)).float()
        known = self.labels[rows] >= 0
        label = self.labels[rows].clamp(min=0)[:, None]
        p = torch.softmax(z, -1)
        figures[0, rows] = -p.gather(1, label).squeeze(1).clamp(min=TINY).log() * known
        total = c.ce * (figures[0, rows] * weight).sum()
        mass = q = sign = None
        if target is not None:
            # The softmax over all V is one fused pass; selecting columns first would need a log-sum-exp, which is four.
            q = torch.softmax(target.float(), -1)
            q = q if self.ids is None else q[:, self.ids]
            mass = q.sum(-1) if self.ids is not None or c.soft else torch.ones_like(weight)
            if c.soft:
                total += c.soft * (weight * -(q * torch.log_softmax(z, -1)).sum(-1)).sum()
            difference = p - q if c.soft else torch.sub(p, q, out=q)
            figures[1, rows] = torch.linalg.vector_norm(difference, 1, -1)
            if self.ids is not None:
                figures[1, rows] += 1 - mass
            total += c.l1 * (figures[1, rows] * weight).sum()
            sign = difference.sign_()
        if self.with_gradient:
            logits[rows] = self._gradient(p, q, sign, mass, label, weight[:, None], (weight * known)[:, None])
        return total

    def _gradient(
        self, p: Tensor, q: Tensor | None, sign: Tensor | None, mass: Tensor | None, label: Tensor, weight: Tensor,
        label_weight: Tensor,
    ) -> Tensor:  # fmt: skip
        """The gradient in the module's docstring for a few rows. It overwrites ``p`` and ``sign``."""
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
