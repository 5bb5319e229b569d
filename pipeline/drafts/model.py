"""What the drafts of all algorithms share.

That is the target's embedding and head, layers of one family, the final norm, the loss over supervised drafts, and
drafting from left to right. An algorithm adds how the states are computed.

Shapes: B sequences of S tokens (R in decoding), A anchors, N kept blocks, G drafts per block, H hidden size, V
vocabulary, D draft vocabulary (V unless ``draft_vocab_size`` reduces it), r rank of a sequential head.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.decoding.sampling import Sampler
from pipeline.drafts.base import Batch, Blocks, Draft, LossTerms, LossWeights, Proposals, Supervision
from pipeline.drafts.families.attention import AttentionPlan, Shape, default_backend, plan_attention
from pipeline.drafts.families.layers import DecoderLayer
from pipeline.drafts.losses import Coefficients, Output, distribution_loss

# Takes the previous tokens [R]; returns the next drafts' logits [R, D] and confidences (fp32 [R] in [0, 1], or None).
Step = Callable[[Tensor], tuple[Tensor, Tensor | None]]
HeadInputs = tuple[Tensor | None, Tensor | None]


class Model(Draft):
    """Embedding, layers, norm and head. ``width`` is the input width of the projections (default: the hidden size)."""

    NAME: str  # architectures[0] of config.json is the family's name, this name and "Model"
    d2t: Tensor | None
    t2d: Tensor | None
    target_head: Tensor | None

    def __init__(self, config: Any, family: ModuleType, width: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.norm_class = family.RMSNorm  # a class and not the module, so that a draft can be copied
        hidden, vocabulary, depth = config.hidden_size, config.vocab_size, config.num_hidden_layers
        self.embed_tokens = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(family.DecoderLayer(config, i, width) for i in range(depth))
        self.norm = self.make_norm()
        self.rotary = family.Rotary(config)
        size = self.draft_vocab_size
        self.lm_head = nn.Linear(hidden, size, bias=False)
        self.scale = family.embedding_scale(config)
        reduced = size < vocabulary
        # As engines expect: target id = draft id + d2t[draft id]; t2d is True for the target's ids that the draft has.
        self.register_buffer("d2t", torch.zeros(size, dtype=torch.int64) if reduced else None)
        self.register_buffer("t2d", torch.zeros(vocabulary, dtype=torch.bool) if reduced else None)
        # The loss of a reduced draft needs the target's whole head. It is not saved with the draft.
        self.register_buffer("target_head", None, persistent=False)

    @staticmethod
    def default_decay(block_size: int) -> float:
        """The decay of the position weight exp(-(k-1)/decay). As in the paper, it is the block size."""
        return float(block_size)

    def make_norm(self) -> nn.Module:
        """A new norm over the hidden size."""
        norm: nn.Module = self.norm_class(self.config.hidden_size, eps=self.config.rms_norm_eps)
        return norm

    @property
    def decoder_layers(self) -> list[DecoderLayer]:
        """The draft's layers, typed as ``DecoderLayer``."""
        return [layer for layer in self.layers if isinstance(layer, DecoderLayer)]

    @property
    def draft_vocab_size(self) -> int:
        """D, the number of tokens that the draft can propose."""
        return int(getattr(self.config, "draft_vocab_size", None) or self.config.vocab_size)

    @property
    def ids(self) -> Tensor | None:
        """The target ids int64 [D] of a reduced draft vocabulary, else None."""
        return None if self.d2t is None else target_ids(self.d2t)

    def window(self, kind: str) -> int | None:
        """How many positions layers of type ``kind`` see; None means all."""
        return self.config.sliding_window if kind == "sliding_attention" else None

    def embed(self, ids: Tensor) -> Tensor:
        """Input embeddings [.., H] of ids [..], scaled as in the family, in the type of the trained tensors."""
        embedded: Tensor = self.embed_tokens(ids)
        if self.scale != 1:  # the factor is rounded as in the target
            embedded = embedded * torch.tensor(self.scale, dtype=embedded.dtype)
        return embedded.to(next(self.norm.parameters()).dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """U = head(h), fp32 [.., D] for states [.., H]; softcapped if the target's logits are."""
        logits, cap = self.lm_head(hidden.to(self.lm_head.weight.dtype)).float(), self.softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    @property
    def softcap(self) -> float | None:
        """Gemma's cap of the final logits; None for other targets."""
        return getattr(self.config, "final_logit_softcapping", None)

    def plans(
        self, rows: Tensor, anchors: Tensor, context: int, queries: int, keys: int, first: int = 0
    ) -> dict[str, AttentionPlan]:
        """The attention plan of each layer type for N blocks (see attention.py)."""
        backend, kinds = self.attention or default_backend(rows.device), {x.kind for x in self.decoder_layers}
        shapes = {kind: Shape(queries, keys, first, self.window(kind)) for kind in kinds}
        return {k: plan_attention(rows, anchors, context, shape, backend) for k, shape in shapes.items()}

    # --- the loss ---

    @abstractmethod
    def block_states(self, batch: Batch, blocks: Blocks, drafts: int | None = None) -> Tensor:
        """Final states [B, A, G, H] of at least the first ``drafts`` drafts of the kept blocks; zero elsewhere."""

    def head_inputs(self, batch: Batch, blocks: Blocks, states: Tensor) -> HeadInputs:
        """Embedded previous tokens and features of the sequential head, each [B, A, G, r]; None without such a head."""
        return None, None

    @property
    def bias_weight(self) -> Tensor | None:
        """W2 [D, r] of the sequential head; None without such a head."""
        return None

    def loss(
        self, batch: Batch, blocks: Blocks, supervision: Supervision, weights: LossWeights, chunk_slots: int = 512
    ) -> LossTerms:  # fmt: skip
        """See Draft.loss; design.md, "Loss", has the formula."""
        drafts = self.trained_drafts if self.training else self.max_drafts
        wanted = supervision.mask & (torch.arange(self.max_drafts, device=supervision.mask.device) < drafts)
        where = wanted.nonzero(as_tuple=True)  # rows, columns, drafts: [n] each
        if len(where[0]) == 0:
            return self._nothing(supervision)
        useful = blocks.where(wanted.any(-1))
        # A chain makes equally many passes on every rank, because ZeRO-3 gathers in each pass (pitfall 30).
        states = self.block_states(batch, useful, drafts)
        embedded, features = self.head_inputs(batch, useful, states)
        hidden = states[where]  # [n, H]
        positions = blocks.anchors[where[:2]] + where[2]  # the token before draft k is at a+k
        scale = getattr(self.config, "target_logit_scale", None) or 1  # of the target's logits
        compare = self.learns_confidence and weights.confidence != 0
        terms = distribution_loss(
            hidden, None if features is None else features[where], self.bias_weight, self._output(),
            batch.last_hidden[where[0], positions] * scale, supervision.labels[where], supervision.weights[where],
            Coefficients(weights.ce, weights.l1, weights.soft, compare, agreement=not self.training), chunk_slots,
        )  # fmt: skip
        confidence = self.confidence_loss(hidden, embedded, where, terms.tv, supervision)
        return LossTerms(
            total=terms.total + weights.confidence * confidence,
            ce=terms.ce.detach(),
            l1=terms.l1.detach(),
            confidence=confidence.detach(),
            acceptance=None if terms.tv is None else _scatter(1 - terms.tv, where, wanted),
            agreement=None if terms.agreement is None else _scatter(terms.agreement, where, wanted),
        )

    def confidence_loss(
        self, hidden: Tensor, embedded: Tensor | None, where: tuple[Tensor, ...], tv: Tensor | None,
        supervision: Supervision,
    ) -> Tensor:  # fmt: skip
        """The confidence head's loss as a weighted sum over the drafts; zero without such a head."""
        return hidden.new_zeros((), dtype=torch.float32)

    @property
    def learns_confidence(self) -> bool:
        """Whether there is a confidence head. Its labels need both distributions."""
        return False

    def _output(self) -> Output:
        target = self.lm_head.weight if self.d2t is None else self.target_head
        assert target is not None, "registry and checkpoint give a reduced draft the target's head"
        return Output(self.lm_head.weight, target, self.ids, self.softcap)

    def _nothing(self, supervision: Supervision) -> LossTerms:
        """Zeros with a graph through every trainable tensor, so that a rank without slots takes part (pitfall 30)."""
        zero = sum(p.sum() * 0.0 for p in self.parameters() if p.requires_grad)
        assert isinstance(zero, Tensor)
        empty = torch.zeros_like(supervision.weights)
        none = zero.detach().float()
        return LossTerms(zero.float(), none, none, none, empty, None if self.training else empty)

    # --- drafting ---

    @abstractmethod
    def begin(self, states: Sequence[Any], anchors: Tensor) -> Step:
        """The function that drafts the next token of each block; ``anchors`` [R] are the blocks' first tokens."""

    @torch.no_grad()
    def propose_all(
        self, states: Sequence[Any], anchors: Tensor, sampler: Sampler, generator: torch.Generator | None = None,
        limit: int | None = None, thresholds: Sequence[float] = (),
    ) -> Proposals:  # fmt: skip
        """See Draft.propose_all. Tokens are sampled from left to right, each given the one before."""
        step, previous = self.begin(states, anchors), anchors
        tokens, probabilities, confidences = [], [], []
        alive = torch.ones_like(anchors, dtype=torch.bool)
        for k in range(self.max_drafts if limit is None else min(limit, self.max_drafts)):
            logits, confidence = step(previous)
            if confidence is not None:
                least = thresholds[k] if k < len(thresholds) else 0.0
                # A NaN continues, so that it is recorded and the error can name it.
                alive = alive & ~(confidence < least)
                if least > 0 and not alive.any():
                    break
                confidences.append(confidence)
            drawn = logits.argmax(-1)
            if not sampler.greedy:
                probability = sampler.probabilities(logits)
                drawn = sampler.draw(probability, generator)
                probabilities.append(self._spread(probability))
            previous = drawn if self.d2t is None else drawn + self.d2t[drawn]
            tokens.append(previous)
        rows = (len(anchors), 0)
        return Proposals(
            _joined(tokens, anchors.new_empty(rows)),
            None if sampler.greedy else _joined(probabilities, self._zeros(*rows, self.config.vocab_size)),
            _joined(confidences, self._zeros(*rows)) if self.learns_confidence else None,
        )

    def _zeros(self, *shape: int) -> Tensor:
        """fp32 zeros of ``shape`` on the draft's device."""
        return torch.zeros(shape, device=self.lm_head.weight.device)

    def _spread(self, probabilities: Tensor) -> Tensor:
        """Probabilities [R, V] over the target's tokens from [R, D]; 0 for tokens that the draft does not have."""
        if self.ids is None:
            return probabilities
        return self._zeros(len(probabilities), self.config.vocab_size).index_copy(1, self.ids, probabilities)


def target_ids(d2t: Tensor) -> Tensor:
    """The target ids int64 [D] for the offsets ``d2t`` int64 [D] (target id - draft id)."""
    return d2t + torch.arange(len(d2t), device=d2t.device)


def _joined(parts: list[Tensor], empty: Tensor) -> Tensor:
    """The drafts [R, ..] stacked to [R, n, ..]; ``empty`` if there are none."""
    return torch.stack(parts, 1) if parts else empty


def _scatter(values: Tensor, where: tuple[Tensor, ...], mask: Tensor) -> Tensor:
    """fp32 [B, A, G] with ``values`` [n] at ``where`` and 0 elsewhere."""
    return torch.zeros(mask.shape, device=mask.device).index_put(where, values.detach().float())


def append(buffer: Tensor | None, new: Tensor, length: int) -> Tensor:
    """``buffer`` [2, capacity, ..] with ``new`` [2, n, ..] written after ``length``; a full buffer doubles."""
    buffer = torch.empty_like(new[:, :0]) if buffer is None else buffer
    needed = length + new.shape[1]
    if needed > buffer.shape[1]:
        grown = buffer.new_empty(2, max(2 * buffer.shape[1], needed, 256), *buffer.shape[2:])
        grown[:, :length] = buffer[:, :length]
        buffer = grown
    buffer[:, length:needed] = new
    return buffer


def following(lengths: Sequence[int], counts: Sequence[int], device: torch.device) -> Tensor:
    """Positions int64 [N] of the next ``counts[r]`` tokens after ``lengths[r]`` positions, sequence after sequence."""
    spans = [torch.arange(length, length + count) for length, count in zip(lengths, counts, strict=True)]
    return torch.cat(spans).to(device)
