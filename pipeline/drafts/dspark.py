"""DSpark (arXiv 2607.05147): a parallel backbone, a light sequential head and a confidence head.

With ``markov_rank: 0`` and no confidence head, this is DFlash in either convention of backbone.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.drafts.backbone import Backbone, ContextState
from pipeline.drafts.base import Batch, Blocks, Supervision
from pipeline.drafts.heads import HEADS, ConfidenceHead
from pipeline.drafts.model import HeadInputs, Step


class DSpark(Backbone):
    """The backbone with a sequential head (``markov_rank`` > 0) and a confidence head (``enable_confidence_head``)."""

    NAME = "DSpark"

    def __init__(self, config: Any, family: ModuleType) -> None:
        super().__init__(config, family)
        rank = config.markov_rank
        self.markov_head = self.confidence_head = None
        if rank:
            sizes = (config.vocab_size, rank, self.draft_vocab_size, config.hidden_size)
            options = {"learned_start": True} if config.markov_learned_start else {}
            self.markov_head = HEADS[config.markov_head_type](*sizes, **options)
        if config.enable_confidence_head:
            own = rank if config.confidence_head_with_markov else 0
            self.confidence_head = ConfidenceHead(config.hidden_size + own)
        self.freeze()

    @property
    def learns_confidence(self) -> bool:
        """See Model.learns_confidence."""
        return self.confidence_head is not None

    @property
    def bias_weight(self) -> Tensor | None:
        """See Model.bias_weight."""
        return None if self.markov_head is None else self.markov_head.markov_w2.weight

    def confidence(self, hidden: Tensor, embedded: Tensor | None) -> Tensor:
        """Confidence logits [..] from states [.., H] and embedded previous tokens [.., r]."""
        assert self.confidence_head is not None
        read = embedded if self.config.confidence_head_with_markov else None
        logits: Tensor = self.confidence_head(hidden, read)
        return logits

    def head_inputs(self, batch: Batch, blocks: Blocks, states: Tensor) -> HeadInputs:
        """See Model.head_inputs. Under teacher forcing, the token before draft k is the one at a+k."""
        if self.markov_head is None:
            return None, None
        steps = torch.arange(self.max_drafts, device=states.device)
        positions = (blocks.anchors[..., None] + steps).clamp(max=batch.input_ids.shape[1] - 1)
        rows = torch.arange(len(positions), device=states.device)[:, None, None]
        embedded = self.markov_head.embed(batch.input_ids[rows, positions])
        return embedded, self.markov_head.features(embedded, states)

    def confidence_loss(
        self, hidden: Tensor, embedded: Tensor | None, where: tuple[Tensor, ...], tv: Tensor | None,
        supervision: Supervision,
    ) -> Tensor:  # fmt: skip
        """Weighted BCE with the label 1 - TV(p_d, p_t), or with a sample of it; zero if the label is not computed."""
        if self.confidence_head is None:
            return hidden.new_zeros((), dtype=torch.float32)
        logits = self.confidence(hidden, None if embedded is None else embedded[where]).float()
        if tv is None:
            return logits.sum() * 0.0
        label = (1 - tv).clamp(0, 1)
        if supervision.coins is not None:
            label = (supervision.coins[where] < label).float()
        each = functional.binary_cross_entropy_with_logits(logits, label, reduction="none")
        return (each * supervision.weights[where]).sum()

    def begin(self, states: Sequence[ContextState], anchors: Tensor) -> Step:
        """See Model.begin: one parallel pass gives all U_k; then p_k = softmax(U_k + B_k) from left to right."""
        hidden = self.draft(states, anchors)  # [R, G, H]
        parallel = self.logits(hidden)  # [R, G, D]
        slots, memory = iter(range(self.max_drafts)), None

        def step(previous: Tensor) -> tuple[Tensor, Tensor | None]:
            nonlocal memory
            k = next(slots)
            own, logits, embedded = hidden[:, k], parallel[:, k], None
            if self.markov_head is not None:
                embedded = self.markov_head.embed(previous)
                features, memory = self.markov_head.step(embedded, own, memory)
                logits = logits + self.markov_head.bias(features)
            confidence = None
            if self.confidence_head is not None:
                confidence = torch.sigmoid(self.confidence(own, embedded).float())
            return logits, confidence

        return step
