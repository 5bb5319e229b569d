"""Eagle3 (arXiv 2503.01840): one layer over [norm(embedding); norm(hidden)], trained on its own states.

``hidden`` is fc of the taps at the first step and the layer's own output (before the final norm) at later ones. The
residual is taken before ``hidden_norm`` (after it in drafts of others whose config says ``norm_before_residual``).
DeepSpec's shape: five taps, Qwen3 layer; the original: three, Llama layer.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.drafts.chain import Chain

STEP_WEIGHT = 0.8


class Eagle3(Chain):
    """Training-time test of ``ttt_length`` steps; drafts as many."""

    NAME = "Eagle3"

    def __init__(self, config: Any, family: ModuleType) -> None:
        super().__init__(config, family, width=2 * config.hidden_size)
        self.fc = nn.Linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.layer.hidden_norm = self.make_norm()
        self.freeze()

    @staticmethod
    def default_decay(block_size: int) -> float:
        """See Model.default_decay: a step weighs 0.8 of the one before."""
        return -1 / math.log(STEP_WEIGHT)

    @property
    def max_drafts(self) -> int:
        """See Draft.max_drafts."""
        return getattr(self.config, "block_size", None) or self.config.ttt_length

    def source(self, hidden: Tensor, last_hidden: Tensor) -> Tensor:
        """See Chain.source: fc of the taps."""
        return self.fc(hidden.to(self.fc.weight.dtype))

    def enter(self, embedded: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See Chain.enter."""
        hidden_norm: nn.Module = self.layer.hidden_norm  # type: ignore[assignment]
        normed = hidden_norm(state)
        residual = normed if getattr(self.config, "norm_before_residual", False) else state
        return residual, torch.cat([self.layer.input_layernorm(embedded.to(state.dtype)), normed], -1)
