"""DeepSeek-V3's module for multi-token prediction (arXiv 2412.19437, section 2.2), applied repeatedly for more tokens.

x = projection of [norm(embedding of the next token); norm(last hidden state)], then one decoder layer and the target's
head. In the first step the last hidden state is the target's after its final norm; in later steps it is the draft's
after its own final norm. Both are states that the head reads.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.drafts.chain import Chain


class MTP(Chain):
    """Drafts ``block_size`` tokens, of which the first ``ttt_length`` are trained."""

    NAME = "MTP"

    def __init__(self, config: Any, family: ModuleType) -> None:
        super().__init__(config, family)
        self.enorm, self.hnorm = self.make_norm(), self.make_norm()
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.freeze()

    def source(self, hidden: Tensor, last_hidden: Tensor) -> Tensor:
        """See Chain.source: this is the target's final state."""
        return last_hidden.to(self.eh_proj.weight.dtype)

    def enter(self, embedded: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See Chain.enter."""
        x = self.eh_proj(torch.cat([self.enorm(embedded.to(state.dtype)), self.hnorm(state)], -1))
        return x, self.layer.input_layernorm(x)

    def follow(self, out: Tensor) -> Tensor:
        """See Chain.follow."""
        normed: Tensor = self.norm(out)
        return normed
