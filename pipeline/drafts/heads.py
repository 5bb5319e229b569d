"""The sequential head and the confidence head of DSpark (design.md, "Heads", "Confidence").

A sequential head adds B_k = features_k W2 to the parallel logits of slot k; features depend on the previous token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MarkovHead(nn.Module):
    """First-order head: features_k = W1[x_{k-1}], bias B_k = W1[x_{k-1}] W2. V vocabulary, r rank."""

    def __init__(self, vocab_size: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, vocab_size, bias=False)
        nn.init.normal_(self.markov_w1.weight, std=0.02)
        nn.init.normal_(self.markov_w2.weight, std=0.02)

    def features(self, previous: Tensor) -> Tensor:
        """Ids of the previous tokens [..] -> features [.., r]."""
        return self.markov_w1(previous)

    def bias(self, features: Tensor) -> Tensor:
        """Features [.., r] -> logit bias [.., V]."""
        return self.markov_w2(features)


class ConfidenceHead(nn.Module):
    """c_k = sigmoid(w [h_k; W1[x_{k-1}]] + b): the predicted probability that slot k is accepted."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)

    def forward(self, hidden: Tensor, features: Tensor | None) -> Tensor:
        """hidden [.., H] (and features [.., r]) -> confidence logits [..]."""
        x = hidden if features is None else torch.cat([hidden, features.to(hidden.dtype)], -1)
        return self.proj(x).squeeze(-1)
