"""DSpark (arXiv 2607.05147): a parallel backbone, a light sequential head, a confidence head.

With ``markov_rank: 0`` and no confidence head this is DFlash in its anchor-first form.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen3Config

from pipeline.drafts.attention import default_backend, plan_attention
from pipeline.drafts.backbone import Backbone, ContextState
from pipeline.drafts.base import Batch, Blocks, LossTerms, LossWeights, Proposal, Supervision
from pipeline.drafts.heads import ConfidenceHead, MarkovHead
from pipeline.drafts.losses import distribution_loss
from pipeline.sampling import Sampler


class DSpark(Backbone):
    """Backbone with a Markov head (``markov_rank`` > 0) and a confidence head (``enable_confidence_head``)."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.markov_head = MarkovHead(config.vocab_size, config.markov_rank) if config.markov_rank else None
        self.confidence_head = None
        if config.enable_confidence_head:
            rank = config.markov_rank if config.confidence_head_with_markov else 0
            self.confidence_head = ConfidenceHead(config.hidden_size + rank)
        self.freeze()

    def features(self, previous: Tensor) -> Tensor | None:
        """Features [.., r] of the sequential head for previous tokens [..]; None without one."""
        return None if self.markov_head is None else self.markov_head.features(previous)

    def confidence(self, hidden: Tensor, features: Tensor | None) -> Tensor:
        """Confidence logits [..] for states [.., H]."""
        assert self.confidence_head is not None
        with_markov = self.config.confidence_head_with_markov
        return self.confidence_head(hidden, features if with_markov else None)

    def logits(self, hidden: Tensor, features: Tensor | None) -> Tensor:
        """U_k + B_k, fp32 [.., V], for states [.., H]."""
        parallel = self.lm_head(hidden.to(self.lm_head.weight.dtype)).float()
        return (
            parallel
            if features is None or self.markov_head is None
            else parallel + self.markov_head.bias(features)
        )

    def block_states(self, batch: Batch, blocks: Blocks) -> Tensor:
        """Final states [B, A, G, H] of the kept blocks (zero elsewhere)."""
        rows, columns = blocks.keep.nonzero(as_tuple=True)
        anchors = blocks.anchors[rows, columns]
        backend = self.attention or default_backend(batch.hidden.device)
        plan = plan_attention(rows, anchors, batch.hidden.shape[1], self.block_size, backend)
        states = self(batch.hidden, batch.input_ids[rows, anchors], rows, anchors, plan)
        out = states.new_zeros(*blocks.keep.shape, *states.shape[1:])
        return out.index_put((rows, columns), states)

    def loss(
        self,
        batch: Batch,
        blocks: Blocks,
        supervision: Supervision,
        weights: LossWeights,
        chunk_slots: int = 512,
    ) -> LossTerms:
        """Loss terms of the supervised slots (design.md, "Loss"); see Draft.loss."""
        useful = Blocks(blocks.anchors, blocks.keep & supervision.mask.any(-1))
        where = supervision.mask.nonzero(as_tuple=True)  # rows, columns, slots: [n] each
        if len(where[0]) == 0:
            return self._nothing(supervision)
        hidden = self.block_states(batch, useful)[where]  # [n, H]
        positions = blocks.anchors[where[:2]] + where[2]  # slot k has token a+k as previous token
        features = self.features(batch.input_ids[where[0], positions])
        slot_weights = supervision.weights[where]
        terms = distribution_loss(
            hidden, features, None if self.markov_head is None else self.markov_head.markov_w2.weight,
            self.lm_head.weight, batch.last_hidden[where[0], positions], supervision.labels[where], slot_weights,
            weights.ce, weights.l1, chunk_slots, compare=self.confidence_head is not None and weights.confidence != 0,
            agreement=not self.training,
        )  # fmt: skip
        confidence = hidden.new_zeros((), dtype=torch.float32)
        if self.confidence_head is not None:
            confidence = self._confidence_loss(hidden, features, terms.tv, slot_weights)
        return LossTerms(
            total=terms.total + weights.confidence * confidence,
            ce=terms.ce.detach(),
            l1=terms.l1.detach(),
            confidence=confidence.detach(),
            acceptance=None if terms.tv is None else _scatter(1 - terms.tv, where, supervision.mask),
            agreement=None if terms.agreement is None else _scatter(terms.agreement, where, supervision.mask),
        )

    def propose(
        self,
        state: ContextState,
        anchor: int,
        sampler: Sampler,
        generator: torch.Generator | None = None,
        limit: int | None = None,
        threshold: float = 0.0,
    ) -> Proposal:
        """Sample the block left to right: p_k = softmax(U_k + B_k(x_{k-1})); see Draft.propose."""
        previous = torch.tensor([anchor], device=self.lm_head.weight.device)
        hidden = self.draft(state, previous)  # [G, H]
        parallel = self.lm_head(hidden).float()  # [G, V]
        tokens, probabilities, confidences = [], [], []
        for k in range(min(self.block_size, limit if limit is not None else self.block_size)):
            features = self.features(previous)  # [1, r]
            if self.confidence_head is not None:
                confidence = torch.sigmoid(self.confidence(hidden[k : k + 1], features).float())
                if threshold > 0 and confidence.item() < threshold:
                    break
                confidences.append(confidence)
            logits = parallel[k : k + 1]
            if features is not None and self.markov_head is not None:
                logits = logits + self.markov_head.bias(features)
            if sampler.greedy:
                previous = logits.argmax(-1)
            else:
                probabilities.append(sampler.probabilities(logits))
                previous = sampler.draw(probabilities[-1], generator)
            tokens.append(previous)
        return Proposal(
            tokens=torch.cat(tokens) if tokens else previous[:0],
            probabilities=None if sampler.greedy else torch.cat(probabilities) if tokens else parallel[:0],
            confidences=None
            if self.confidence_head is None
            else torch.cat(confidences)
            if tokens
            else parallel[:0, 0],
        )

    def _confidence_loss(
        self, hidden: Tensor, features: Tensor | None, tv: Tensor | None, weights: Tensor
    ) -> Tensor:
        """Weighted BCE against the label 1 - TV(p_d, p_t); zero with a graph while there is no label."""
        logits = self.confidence(hidden, features).float()
        if tv is None:
            return logits.sum() * 0.0
        label = (1 - tv).clamp(0, 1)
        each = functional.binary_cross_entropy_with_logits(logits, label, reduction="none")
        return (each * weights).sum()

    def _nothing(self, supervision: Supervision) -> LossTerms:
        """Zeros with a graph through every trainable tensor: a rank without slots still takes part (pitfall 30)."""
        zero = sum(p.sum() * 0.0 for p in self.parameters() if p.requires_grad)
        assert isinstance(zero, Tensor)
        empty = torch.zeros_like(supervision.weights)
        none = zero.detach().float()
        return LossTerms(zero.float(), none, none, none, empty, None if self.training else empty)


def _scatter(values: Tensor, where: tuple[Tensor, ...], mask: Tensor) -> Tensor:
    """fp32 [B, A, G] with ``values`` [n] at ``where`` and 0 elsewhere."""
    return torch.zeros(mask.shape, device=mask.device).index_put(where, values.detach().float())
