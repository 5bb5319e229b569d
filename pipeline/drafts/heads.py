"""The sequential heads and the confidence head of DSpark (design.md, "Heads", "Confidence").

A sequential head adds B_k = W2 f_k to the parallel logits of draft k. The features f_k depend on the previous token
x_{k-1} (vanilla), in addition on the state h_k (gated), and in addition on all earlier tokens of the block (rnn).
Shapes: V vocabulary, D draft vocabulary, r rank, G drafts per block.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MarkovHead(nn.Module):
    """The first-order head: f_k = W1[x_{k-1}]. The other heads override ``step``."""

    def __init__(
        self, vocab_size: int, rank: int, draft_vocab_size: int | None = None, hidden_size: int = 0
    ) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size or vocab_size, bias=False)

    def embed(self, previous: Tensor) -> Tensor:
        """W1[x] [.., r] of the previous tokens' ids [..]. The confidence head also reads it."""
        embedded: Tensor = self.markov_w1(previous)
        return embedded

    def start(self, like: Tensor) -> Tensor | None:
        """The state before the first draft, in the shape of ``like`` [.., r]; None if the head has no memory."""
        return None

    def step(self, embedded: Tensor, hidden: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Features [.., r] and the new state, from W1[x] [.., r], h [.., H] and the state before this draft."""
        return embedded, None

    def features(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Features [.., G, r] of whole blocks under teacher forcing, from W1[x] [.., G, r] and states [.., G, H]."""
        return self.step(embedded, hidden, None)[0]  # without memory, each draft can be computed alone

    def bias(self, features: Tensor) -> Tensor:
        """The logit bias [.., D] from features [.., r]."""
        bias: Tensor = self.markov_w2(features)
        return bias


class GatedHead(MarkovHead):
    """f_k = sigmoid(Wg [h_k; W1[x]]) * W1[x]: the state decides how much influence the previous token has."""

    def __init__(self, vocab_size: int, rank: int, draft_vocab_size: int | None, hidden_size: int) -> None:
        super().__init__(vocab_size, rank, draft_vocab_size)
        self.gate_proj = nn.Linear(hidden_size + rank, rank)

    def step(self, embedded: Tensor, hidden: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """See ``MarkovHead.step``."""
        gate = torch.sigmoid(self.gate_proj(torch.cat([hidden.to(embedded.dtype), embedded], -1)))
        return gate * embedded, None


class RNNHead(MarkovHead):
    """z = [s; W1[x]; h] gives gate g, candidate c and output o: s' = sig(g) s + (1 - sig(g)) tanh(c), f = tanh(o).

    The state s starts at zero, or at a learned vector (``learned_start``).
    """

    def __init__(
        self, vocab_size: int, rank: int, draft_vocab_size: int | None, hidden_size: int, learned_start: bool = False
    ) -> None:  # fmt: skip
        super().__init__(vocab_size, rank, draft_vocab_size)
        self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)
        self.initial_state = nn.Parameter(0.02 * torch.randn(rank)) if learned_start else None

    def start(self, like: Tensor) -> Tensor:
        """See ``MarkovHead.start``."""
        if self.initial_state is None:
            return torch.zeros_like(like)
        return self.initial_state.to(like.dtype).expand_as(like)

    def step(self, embedded: Tensor, hidden: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """See ``MarkovHead.step``."""
        before = self.start(embedded) if state is None else state
        joint = self.joint_proj(torch.cat([before, embedded, hidden.to(embedded.dtype)], -1))
        gate, candidate, output = joint.chunk(3, -1)
        keep = torch.sigmoid(gate)
        return torch.tanh(output), keep * before + (1 - keep) * torch.tanh(candidate)

    def features(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """See ``MarkovHead.features``. The drafts are computed one after another."""
        state: Tensor | None = None
        features = []
        for k in range(embedded.shape[-2]):
            now, state = self.step(embedded[..., k, :], hidden[..., k, :], state)
            features.append(now)
        return torch.stack(features, -2)


HEADS: dict[str, type[MarkovHead]] = {"vanilla": MarkovHead, "gated": GatedHead, "rnn": RNNHead}


class ConfidenceHead(nn.Module):
    """c_k = sigmoid(w [h_k; W1[x_{k-1}]] + b): the predicted probability that draft k is accepted."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)

    def forward(self, hidden: Tensor, embedded: Tensor | None) -> Tensor:
        """Confidence logits [..] from ``hidden`` [.., H] and, if given, W1 of the previous tokens [.., r]."""
        x = hidden if embedded is None else torch.cat([hidden, embedded.to(hidden.dtype)], -1)
        logits: Tensor = self.proj(x)
        return logits.squeeze(-1)
