"""Sums over micro-batches and ranks, and the figures of a step that they give."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic

import torch
from torch import Tensor

from pipeline.drafts.base import LossTerms, accepted_length
from stages.train import trainer
from stages.train.batches import Micro

SCORE = "accepted_length"  # expected at temperature 1, bonus token counted
GREEDY = "accepted_length_greedy"


@dataclass(frozen=True)
class Part:
    """Sums over one micro-batch; ``square``: of its gradient's entries on this rank."""

    samples: Tensor  # int64 [B]
    total: Tensor
    ce: Tensor
    l1: Tensor
    confidence: Tensor
    weight: Tensor
    accepted: Tensor
    greedy: Tensor
    blocks: Tensor
    square: Tensor

    def values(self) -> list[Tensor]:
        """All sums, in order."""
        return [getattr(self, name) for name in self.__dataclass_fields__ if name != "samples"]


class Sums:
    """Gathers the parts of one step or evaluation. Tensors stay on their device until the sum over ranks."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.greedy = self.compared = False

    def add(self, micro: Micro, terms: LossTerms, square: Tensor | None = None) -> None:
        """Count one micro-batch; fillers weigh nothing and have no blocks."""
        keep = micro.blocks.keep & (micro.batch.samples >= 0)[:, None]
        zero = torch.zeros((), device=keep.device)
        self.greedy = self.greedy or terms.agreement is not None
        self.compared = self.compared or terms.acceptance is not None
        self.parts.append(
            Part(
                samples=micro.batch.samples,
                total=terms.total.detach(),
                ce=terms.ce,
                l1=terms.l1,
                confidence=terms.confidence,
                weight=micro.supervision.weights.sum(dtype=torch.float64),
                accepted=zero if terms.acceptance is None else accepted_length(terms.acceptance, keep),
                greedy=zero if terms.agreement is None else accepted_length(terms.agreement, keep),
                blocks=keep.sum(),
                square=zero if square is None else square,
            )
        )

    def over_ranks(self) -> tuple[dict[str, float], bool]:
        """Means over all ranks, and whether every sum is finite. All ranks call it together."""
        rows = [part.values() for part in self.parts] or [[torch.zeros(())] * 9]
        sums = [torch.stack([row[i].double() for row in rows]).sum() for i in range(len(rows[0]))]
        total, ce, l1, confidence, weight, accepted, greedy, blocks, square = trainer.sum_over_ranks(sums)
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
        found = ((p.samples.tolist(), float(p.total), math.sqrt(float(p.square))) for p in self.parts)
        return [part for part in found if not math.isfinite(part[1] + part[2])]


class Timed:
    """The items of an iterator; ``waited``: seconds spent waiting for them."""

    def __init__(self, items: Iterator[Micro]) -> None:
        self.items, self.waited = items, 0.0

    def __iter__(self) -> Iterator[Micro]:
        return self

    def __next__(self) -> Micro:
        began = monotonic()
        item = next(self.items)
        self.waited += monotonic() - began
        return item
