"""Starts of a new draft's tensors, besides the target's embedding and head.

They are the target's final norm and last layers, bigrams of the cache for the Markov head, or another draft's tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pipeline.config import ConfigError
from pipeline.drafts.base import FROZEN
from pipeline.drafts.model import Model
from pipeline.drafts.starts import bigram

# These targets (by model_type) multiply with 1 + weight in their norms. All draft families multiply with the weight.
OFFSET_NORMS = (
    "gemma", "gemma2", "gemma3_text", "recurrent_gemma", "vaultgemma", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text",
    "qwen4_exp_text", "minimax_m3_vl_text", "step3p5", "step3p7",
)  # fmt: skip
OTHER_TAPS = 0.1  # scale of fc's random part if the draft starts from the target's layers
VOCABULARY = (*FROZEN, "d2t", "t2d")  # tensors that follow from the target and the draft's vocabulary
HEADS = ("markov_head.", "confidence_head.")
LayerTensors = Mapping[int, Mapping[str, Tensor]]  # raw weights by layer number and name inside the layer


def norm_weight(value: Tensor, target: Any) -> Tensor:
    """The weight [n] of a norm in the target with config ``target``, as the draft's norms need it (fp32)."""
    return value.float() + (1.0 if target.model_type in OFFSET_NORMS else 0.0)


def plain_norms(layer: Mapping[str, Tensor], target: Any) -> dict[str, Tensor]:
    """Raw weights of a target's layer; those of norms are converted as the draft's norms need them."""
    return {n: norm_weight(v, target) if n.endswith("norm.weight") else v for n, v in layer.items()}


def target_layers(draft: Model, layers: LayerTensors) -> dict[str, Tensor]:
    """Tensors of the target's last layers under the draft's names; tensors that the draft does not have are left out.

    If a layer reads [embedding; state] (Eagle3), the target's projection becomes the half that reads the state. The
    context starts as the input of the first of these layers: fc passes the tap nearest to that input (the other taps
    start small), and the context's norm is that layer's input norm. If exactly that input is tapped, the context's keys
    and values equal the target's own from the first step.
    """
    own = {name: value.detach() for name, value in draft.state_dict().items()}
    taken = {}
    for number, source in enumerate(sorted(layers)):
        for name, value in layers[source].items():
            place = f"layers.{number}.{name}"
            if place in own and (fitted := _fitted(own[place], value.float())) is not None:
                taken[place] = fitted
    norm = layers[min(layers)].get("input_layernorm.weight")
    for place in ("hidden_norm.weight", "layers.0.hidden_norm.weight"):
        if norm is not None and place in own:
            taken[place] = norm.float().clone()
    if "layers.0.hidden_norm.weight" in own:  # then input_layernorm norms embeddings, unlike the target's
        taken.pop("layers.0.input_layernorm.weight", None)
    if "fc.weight" in own:
        taken["fc.weight"] = _nearest_tap(own["fc.weight"], draft.config.target_layer_ids, min(layers) - 1)
    return taken


def _fitted(own: Tensor, value: Tensor) -> Tensor | None:
    """``value``, or ``own`` [n, 2H] with ``value`` [n, H] as its second half; None if neither has the right shape."""
    if own.shape == value.shape:
        return value
    if own.dim() == 2 and own.shape == (value.shape[0], 2 * value.shape[-1]):
        return torch.cat([own[:, : value.shape[1]].float(), value], 1)
    return None


def _nearest_tap(fc: Tensor, taps: list[int], wanted: int) -> Tensor:
    """``fc`` [H, m*H] changed so that it passes the tap nearest to layer ``wanted``."""
    fc = OTHER_TAPS * fc
    width = len(fc)
    nearest = min(range(len(taps)), key=lambda i: abs(taps[i] - wanted))
    fc[:, nearest * width : (nearest + 1) * width] += torch.eye(width)
    return fc


def markov_bigrams(draft: Model, pairs: tuple[Tensor, Tensor], smoothing: float) -> dict[str, Tensor]:
    """The Markov head's tensors from ``pairs`` of neighbouring answer tokens, int64 [n] each (see bigram.py)."""
    rank, rows = draft.config.markov_rank, draft.config.vocab_size
    w1, w2 = bigram.fit(*pairs, rows, rank, smoothing)
    if draft.ids is not None:
        w2 = w2[draft.ids]
    return {"markov_head.markov_w1.weight": w1, "markov_head.markov_w2.weight": w2}


def other_draft(draft: Model, tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """The tensors of another draft that fit this one, such as a DFlash's for a DSpark. Heads that it lacks stay new.

    Embedding, head and tables of the vocabulary are never taken, and W2 of a Markov head only if both drafts have the
    same vocabulary. Raises ``ConfigError`` with the first backbone tensor that is missing or has another shape.
    """
    shapes = {n: tuple(v.shape) for n, v in draft.state_dict().items() if n not in VOCABULARY}
    for name, shape in sorted(shapes.items()):
        got = tuple(tensors[name].shape) if name in tensors else "nothing"
        if not name.startswith(HEADS) and got != shape:
            raise ConfigError(f"drafter.init.draft={where}: tensor {name}: expected shape {shape}, got {got}")
    keep = {name: value for name, value in tensors.items() if shapes.get(name) == value.shape}
    one, other = draft.d2t, tensors.get("d2t")
    same = one is other if one is None or other is None else torch.equal(one, other)
    if not same:
        keep.pop("markov_head.markov_w2.weight", None)
    return {name: value.float() for name, value in keep.items()}
