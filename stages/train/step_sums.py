"""Sums over micro-batches and ranks, and the figures of a step that follow from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from time import monotonic

import torch
from torch import Tensor

from pipeline.drafts.base import LossTerms, accepted_length
from stages.train import trainer
from stages.train.batches import Micro

SCORE = "accepted_length"  # expected at temperature 1, bonus token included
GREEDY = "accepted_length_greedy"


class Sums:
    """Collects the sums of one step or evaluation. Tensors stay on their device until the sum over ranks."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor, Tensor]] = []  # samples [B] and sums fp64 [9] of each micro-batch
        self.greedy = self.compared = False

    def add(self, micro: Micro, terms: LossTerms, square: Tensor | None = None) -> None:
        """Add a micro-batch; ``square`` is the sum of its squared gradients on this rank. Fillers have no blocks."""
        keep = micro.blocks.keep & (micro.batch.samples >= 0)[:, None]
        zero = torch.zeros((), device=keep.device)
        self.greedy |= terms.agreement is not None
        self.compared |= terms.acceptance is not None
        sums = (
            terms.total.detach(), zero if square is None else square, terms.ce, terms.l1, terms.confidence,
            micro.supervision.weights.sum(dtype=torch.float64), keep.sum(),
            zero if terms.acceptance is None else accepted_length(terms.acceptance, keep),
            zero if terms.agreement is None else accepted_length(terms.agreement, keep),
        )  # fmt: skip
        self.parts.append((micro.batch.samples, torch.stack([value.double() for value in sums])))

    def over_ranks(self) -> tuple[dict[str, float], bool]:
        """Means over all ranks, and whether every sum is finite. All ranks call it together."""
        sums = torch.stack([sums for _, sums in self.parts]).sum(0) if self.parts else torch.zeros(9)
        over_ranks = trainer.sum_over_ranks(list(sums))
        total, square, ce, l1, confidence, weight, blocks, accepted, greedy = over_ranks
        weight, blocks = weight or 1.0, blocks or 1.0
        figures = {
            "loss": total / weight,
            "ce": ce / weight,
            "l1": l1 / weight,
            "confidence": confidence / weight,
            "weight": weight,
        }
        figures |= {SCORE: accepted / blocks} if self.compared else {}
        return figures | ({GREEDY: greedy / blocks} if self.greedy else {}), math.isfinite(total + square)

    def not_finite(self) -> list[tuple[list[int], float, float]]:
        """Samples, loss sum and gradient norm of each micro-batch of this rank that is not finite."""
        found = ((ids.tolist(), float(sums[0]), math.sqrt(float(sums[1]))) for ids, sums in self.parts)
        return [part for part in found if not math.isfinite(part[1] + part[2])]


class Timed:
    """The items of an iterator. ``waited`` counts the seconds spent waiting for them."""

    def __init__(self, items: Iterator[Micro]) -> None:
        self.items, self.waited = items, 0.0

    def __iter__(self) -> Iterator[Micro]:
        return self

    def __next__(self) -> Micro:
        began = monotonic()
        item = next(self.items)
        self.waited += monotonic() - began
        return item
