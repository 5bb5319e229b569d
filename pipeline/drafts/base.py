"""The interface of a draft that the stages train and evaluate use: ``loss``, ``observe``, ``propose``.

Shapes: B sequences, S tokens, A anchors per sequence, G drafts per block, V vocabulary, D draft vocabulary (D = V
unless reduced), H hidden size, m taps. Draft k = 0 .. G-1 of a block at anchor a predicts the token at a+1+k.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.decoding.sampling import Sampler

FROZEN = ("embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True)
class Batch:
    """Cached samples, padded on the right to the length of the longest."""

    input_ids: Tensor  # int64 [B, S]
    loss_mask: Tensor  # bool [B, S]: True for tokens that the target generated
    lengths: Tensor  # int64 [B]
    hidden: Tensor  # bf16 or fp32 [B, S, m*H]: outputs of the tapped layers
    last_hidden: Tensor  # bf16 or fp32 [B, S, H]: after the target's final norm
    samples: Tensor  # int64 [B]: the index of each sample in the cache

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on ``device``."""
        return Batch(*(getattr(self, field.name).to(device, non_blocking=True) for field in fields(self)))


@dataclass(frozen=True)
class Blocks:
    """Where blocks are drafted: ``anchors`` [B, A] ascend in each row; ``keep`` [B, A] is False for padding."""

    anchors: Tensor
    keep: Tensor

    def where(self, wanted: Tensor) -> Blocks:
        """The same anchors; a block is kept only if ``wanted`` bool [B, A] is also True."""
        return Blocks(self.anchors, self.keep & wanted)


@dataclass(frozen=True)
class Supervision:
    """Labels of every draft: ids int64 [B, A, G], mask bool [B, A, G], weights fp32 [B, A, G] (0 outside the mask).

    If the confidence head learns sampled labels, ``coins`` fp32 [B, A, G] in [0, 1) decide them; else it is None.
    """

    labels: Tensor
    mask: Tensor
    weights: Tensor
    coins: Tensor | None = None


@dataclass(frozen=True)
class LossWeights:
    """Weights of the loss terms in one step: cross-entropy, L1, confidence, soft cross-entropy with the target."""

    ce: float
    l1: float
    confidence: float
    soft: float = 0.0


@dataclass(frozen=True)
class LossTerms:
    """Weighted sums over the supervised drafts of one batch (not divided by anything).

    ``total`` is the differentiable sum with the weights of the terms applied; the other sums are detached.
    ``acceptance`` [B, A, G] is 1 - TV(draft, target), the probability that the draft is accepted at temperature 1.
    ``agreement`` [B, A, G] is 1 where both distributions have the same mode (acceptance at temperature 0). Both are 0
    for drafts without supervision. ``agreement`` is None in training mode, because it costs two more passes.
    ``acceptance`` is None if nothing needs to compare the distributions (the weights of L1 and confidence are 0).
    """

    total: Tensor
    ce: Tensor
    l1: Tensor
    confidence: Tensor
    acceptance: Tensor | None
    agreement: Tensor | None


@dataclass(frozen=True)
class Proposal:
    """A drafted chain of n tokens (n <= G).

    ``probabilities`` fp32 [n, V] are the distributions that the tokens were drawn from, None at temperature 0.
    ``confidences`` fp32 [n] are None without a confidence head.
    """

    tokens: Tensor  # int64 [n]
    probabilities: Tensor | None
    confidences: Tensor | None


@dataclass(frozen=True)
class Proposals:
    """Chains of n tokens for each of R sequences (n <= G). ``Proposal`` describes the fields."""

    tokens: Tensor  # int64 [R, n]
    probabilities: Tensor | None  # fp32 [R, n, V]
    confidences: Tensor | None  # fp32 [R, n]


class Draft(nn.Module):
    """A draft model. A new algorithm subclasses ``Model`` of model.py and gets a line in algorithms.py."""

    config: Any  # the transformers config that the artifact's config.json holds
    attention: str | None = None  # backend of families/attention.py; None means the default of the device

    @property
    def max_drafts(self) -> int:
        """The largest number of drafts per block (G)."""
        return int(self.config.block_size)

    @property
    def trained_drafts(self) -> int:
        """How many of a block's drafts, from the first on, have a loss in training."""
        return getattr(self.config, "ttt_length", None) or self.max_drafts

    def freeze(self) -> None:
        """Exclude the target's tensors, embedding and head, from training."""
        for name, parameter in self.named_parameters():
            if name in FROZEN:
                parameter.requires_grad_(False)

    def trainable_parameters(self) -> list[nn.Parameter]:
        """The parameters that training changes."""
        return [p for p in self.parameters() if p.requires_grad]

    @abstractmethod
    def loss(
        self, batch: Batch, blocks: Blocks, supervision: Supervision, weights: LossWeights, chunk_slots: int = 512
    ) -> LossTerms:  # fmt: skip
        """Loss terms of one batch. Without any supervised draft they are zeros that still have a graph."""

    @abstractmethod
    def start(self) -> Any:
        """The state of a new sequence: its context, in which nothing is observed yet."""

    @abstractmethod
    def observe_all(
        self, states: Sequence[Any], counts: Sequence[int], tokens: Tensor, hidden: Tensor, last_hidden: Tensor
    ) -> None:  # fmt: skip
        """Add newly verified positions to each sequence: ``counts[r]`` (at least 1) to sequence r.

        The positions of all sequences lie one after another: ids int64 [N], taps [N, m*H], final states [N, H] with
        N = sum(counts).
        """

    @abstractmethod
    def propose_all(
        self, states: Sequence[Any], anchors: Tensor, sampler: Sampler, generator: torch.Generator | None = None,
        limit: int | None = None, thresholds: Sequence[float] = (),
    ) -> Proposals:  # fmt: skip
        """Draft up to ``limit`` tokens after each of ``anchors`` int64 [R], tokens that are not yet observed.

        Draft k needs a confidence of at least ``thresholds[k]`` (0 where the list is shorter). Drafting ends when no
        sequence reaches it.
        """

    def observe(self, state: Any, tokens: Tensor, hidden: Tensor, last_hidden: Tensor) -> None:
        """``observe_all`` for one sequence: ids int64 [n], taps [n, m*H], final states [n, H] of n positions."""
        self.observe_all([state], [len(tokens)], tokens, hidden, last_hidden)

    def propose(
        self, state: Any, anchor: int, sampler: Sampler, generator: torch.Generator | None = None,
        limit: int | None = None, thresholds: Sequence[float] = (),
    ) -> Proposal:  # fmt: skip
        """``propose_all`` for one sequence: the chain ends before the first draft below its threshold."""
        anchors = torch.tensor([anchor], device=next(self.parameters()).device)
        made = self.propose_all([state], anchors, sampler, generator, limit, thresholds)
        rows = (None if part is None else part[0] for part in (made.probabilities, made.confidences))
        return Proposal(made.tokens[0], *rows)


def supervise(
    batch: Batch, blocks: Blocks, drafts: int, decay: float, trained: int | None = None
) -> Supervision:
    """The labels and weights w_k = exp(-(k-1)/decay) of all drafts (design.md, "Loss").

    The label of draft k in a block at anchor a is the token at a+1+k. A block is supervised up to the first draft whose
    label is not an answer token or lies beyond the sequence. Only the first ``trained`` drafts have a weight above 0.
    """
    steps = torch.arange(drafts, device=blocks.anchors.device)
    positions = blocks.anchors[..., None] + 1 + steps  # [B, A, G]
    inside = positions < batch.lengths[:, None, None]
    rows = torch.arange(len(batch.lengths), device=positions.device)[:, None, None]
    safe = positions.clamp(max=batch.input_ids.shape[1] - 1)
    answer = batch.loss_mask[rows, safe].bool() & inside & blocks.keep[..., None]
    mask = answer.cumprod(-1).bool()
    weights = torch.exp(-steps.float() / decay) * mask * (steps < (drafts if trained is None else trained))
    return Supervision(batch.input_ids[rows, safe] * mask, mask, weights)


def accepted_length(acceptance: Tensor, keep: Tensor) -> Tensor:
    """The expected accepted length 1 + sum_k prod_{i<=k} acceptance_i (bonus counted), summed over the kept blocks.

    ``acceptance`` [B, A, G] in [0, 1] and ``keep`` bool [B, A] give a scalar.
    """
    return ((1 + acceptance.cumprod(-1).sum(-1)) * keep).sum()
