"""Eagle3 (arXiv 2503.01840): one layer over [norm(embedding); norm(hidden)], trained on its own states.

In the first step ``hidden`` is fc of the taps; in later steps it is the layer's own output before the final norm. The
residual is taken before ``hidden_norm``, or after it if the config of an imported draft has ``norm_before_residual``.
DeepSpec's shape has five taps and a Qwen3 layer; the original has three taps and a Llama layer.
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
    """Trained with a training-time test of ``ttt_length`` steps; drafts ``block_size`` tokens."""

    NAME = "Eagle3"

    def __init__(self, config: Any, family: ModuleType) -> None:
        super().__init__(config, family, width=2 * config.hidden_size)
        self.fc = nn.Linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.layer.hidden_norm = self.make_norm()
        self.freeze()

    @staticmethod
    def default_decay(block_size: int) -> float:
        """See Model.default_decay: each step has 0.8 times the weight of the step before."""
        return -1 / math.log(STEP_WEIGHT)

    def source(self, hidden: Tensor, last_hidden: Tensor) -> Tensor:
        """See Chain.source: fc of the taps."""
        source: Tensor = self.fc(hidden.to(self.fc.weight.dtype))
        return source

    def enter(self, embedded: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See Chain.enter."""
        hidden_norm: nn.Module = self.layer.hidden_norm  # type: ignore[assignment]
        normed = hidden_norm(state)
        residual = normed if getattr(self.config, "norm_before_residual", False) else state
        return residual, torch.cat([self.layer.input_layernorm(embedded.to(state.dtype)), normed], -1)
