"""The drafters by name, and how a new draft is made for a target."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pipeline.config import ConfigError, DrafterConfig
from pipeline.drafts import algorithms
from pipeline.drafts.dspark import DSpark
from pipeline.drafts.model import Model
from pipeline.drafts.starts import warm_start
from pipeline.target.files import logit_scale
from pipeline.target.tensors import TargetTensors

FAMILIES = {name: importlib.import_module(family.module) for name, family in algorithms.FAMILIES.items()}
ALGORITHMS: dict[str, type[Model]] = {
    name: getattr(importlib.import_module(a.module), a.name) for name, a in algorithms.ALGORITHMS.items()
}
FILL_IN = "DFlashDraftModel"  # z-lab's name of 1+N DFlash, whatever the family of its layers
# architectures[0] of config.json -> class. The family of the layers follows from model_type.
ARCHITECTURES: dict[str, type[Model]] = {
    f"{family.NAME}{kind.NAME}Model": kind for family in FAMILIES.values() for kind in ALGORITHMS.values()
} | {FILL_IN: DSpark}
MODEL_TYPES = {family.model_type: name for name, family in algorithms.FAMILIES.items()}
# Fields that every draft takes from the target's text config.
SHARED = (
    "hidden_size", "num_attention_heads", "max_position_embeddings", "pad_token_id", "bos_token_id",
    "eos_token_id", "final_logit_softcapping",
)  # fmt: skip
EPSILONS = ("rms_norm_eps", "layer_norm_epsilon", "norm_eps", "layer_norm_eps")  # names of the norms' epsilon


@dataclass(frozen=True)
class Supervised:
    """What training has to know about a drafter before it makes the draft.

    A block has ``drafts`` drafts (G). The first ``trained`` of them have a loss, with weights exp(-(k-1)/``decay``).
    """

    drafts: int
    trained: int
    decay: float


@dataclass(frozen=True)
class Start:
    """What a new draft may start from; ``drafter.init`` decides what is used.

    ``layers`` are raw weights of the target's last layers. ``pairs`` are neighbouring tokens (previous, next), each
    int64 [n]. ``draft`` holds the tensors of another draft. ``ids`` int64 [D], ascending, are a reduced vocabulary.
    """

    layers: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    pairs: tuple[Tensor, Tensor] | None = None
    draft: Mapping[str, Tensor] = field(default_factory=dict)
    ids: Tensor | None = None


def supervised(drafter: DrafterConfig) -> Supervised:
    """See ``Supervised``. If the config sets no decay, it is the algorithm's default."""
    drafts = drafter.block_size - (0 if drafter.sample_from_anchor else 1)
    default = ALGORITHMS[drafter.algorithm].default_decay(drafter.block_size)
    trained = drafts if drafter.train_steps is None else min(drafts, drafter.train_steps)
    return Supervised(drafts, trained, drafter.loss.decay if drafter.loss.decay is not None else default)


def family_of(drafter: DrafterConfig, target: Any) -> str:
    """The family of the draft's layers: the configured one, else gemma4 for a Gemma target, else qwen3."""
    return drafter.family or ("gemma4" if str(target.model_type).startswith("gemma") else "qwen3")


def chosen_taps(drafter: DrafterConfig, taps: list[int]) -> list[int]:
    """Which of the cache's ``taps`` the drafter reads, as indices: all, or ``num_taps`` spread evenly."""
    count = len(taps) if drafter.num_taps is None else drafter.num_taps
    if count > len(taps):
        raise ConfigError(f"drafter.num_taps={count}: expected at most the cache's {len(taps)} taps {taps}")
    if count <= 1:
        return [len(taps) // 2] * count
    return [round(i * (len(taps) - 1) / (count - 1)) for i in range(count)]


def draft_config(
    drafter: DrafterConfig, target: Any, rows: int, taps: list[int], mask_token_id: int | None,
    reduced: int | None = None,
) -> Any:  # fmt: skip
    """The draft's config: the target's sizes (``rows`` of its embedding) and the drafter's choices.

    ``reduced`` is the size of a smaller draft vocabulary. A draft does not scale its logits: its final norm is trained
    and takes on any scale. Its loss has to know by what the target multiplies its own (``target_logit_scale``).
    """
    family, kind = FAMILIES[family_of(drafter, target)], ALGORITHMS[drafter.algorithm]
    shared = {key: getattr(target, key) for key in SHARED if getattr(target, key, None) is not None}
    shared |= family.config_fields(target, drafter.depth, drafter.sliding_window)
    if drafter.rope_scaling:
        shared |= _scaled_positions(shared, dict(drafter.rope_scaling))
    bare = kind is DSpark and drafter.markov_rank == 0 and not drafter.confidence_head
    fill_in = bare and not drafter.sample_from_anchor
    # The inner width of the MLPs is that of the target's widest layer, else three times its hidden size.
    width = getattr(target, "intermediate_size", None) or 3 * target.hidden_size
    own: dict[str, object] = {
        "architectures": [FILL_IN if fill_in else f"{family.NAME}{kind.NAME}Model"],
        "vocab_size": rows,
        "intermediate_size": int(max(width) if isinstance(width, list | tuple) else width),
        "rms_norm_eps": next((e for name in EPSILONS if (e := getattr(target, name, None))), 1e-6),
        "attention_bias": False,
        "tie_word_embeddings": False,
        "num_hidden_layers": drafter.depth,
        "num_target_layers": target.num_hidden_layers,
        "target_layer_ids": list(taps),
        "block_size": drafter.block_size,
        "mask_token_id": mask_token_id,
        "markov_rank": drafter.markov_rank,
        "markov_head_type": drafter.markov_head,
        "markov_learned_start": drafter.learned_start,
        "enable_confidence_head": drafter.confidence_head,
        "confidence_head_with_markov": drafter.confidence_head and drafter.markov_rank > 0,
        "sample_from_anchor": drafter.sample_from_anchor,
        "ttt_length": supervised(drafter).trained,
    }
    if reduced is not None and reduced < rows:
        own["draft_vocab_size"] = reduced
    if (scale := logit_scale(target)) != 1:
        own["target_logit_scale"] = scale
    return family.make_config(shared | own)


def _scaled_positions(fields: Mapping[str, Any], scaling: Mapping[str, Any]) -> dict[str, object]:
    """Rotary settings ``scaling`` in place of the target's, and the number of positions that they reach.

    The base stays the target's unless ``scaling`` names one. If the layers differ, full-attention layers get it.
    """
    rope = fields["rope_parameters"]
    full = rope.get("full_attention", rope)
    length = scaling.get("original_max_position_embeddings", fields["max_position_embeddings"])
    scaled = {"rope_theta": full["rope_theta"], "original_max_position_embeddings": length, **scaling}
    reach = max(fields["max_position_embeddings"], int(length * scaling.get("factor", 1.0)))
    return {
        "rope_parameters": rope | {"full_attention": scaled} if "full_attention" in rope else scaled,
        "max_position_embeddings": reach,
    }


def build(
    drafter: DrafterConfig, tensors: TargetTensors, taps: list[int], mask_token_id: int | None,
    start: Start | None = None,
) -> Model:  # fmt: skip
    """A new draft in fp32, with weights from torch's generator; embedding and head are the target's tensors, frozen."""
    start, rows = start or Start(), len(tensors.embedding)
    reduced = None if start.ids is None else len(start.ids)
    config = draft_config(drafter, tensors.config, rows, taps, mask_token_id, reduced)
    draft = ALGORITHMS[drafter.algorithm](config, FAMILIES[family_of(drafter, tensors.config)])
    for module in draft.modules():  # as transformers does
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            torch.nn.init.normal_(module.weight, std=config.initializer_range)
            if isinstance(module, torch.nn.Linear) and module.bias is not None:
                torch.nn.init.zeros_(module.bias)
    own = {"embed_tokens.weight": tensors.embedding} | head_tensors(draft, tensors.head, start.ids)
    draft.load_state_dict(own, strict=False, assign=True)
    draft.load_state_dict(_started(draft, drafter, tensors, start), strict=False, assign=True)
    draft.freeze()
    return draft


def head_tensors(draft: Model, head: Tensor, ids: Tensor | None) -> dict[str, Tensor]:
    """The draft's head, taken from the target's [V, H]; for a reduced vocabulary ``ids`` int64 [D] also its tables.

    A reduced draft also gets the whole head as ``target_head``, which its loss needs.
    """
    if ids is None or draft.d2t is None:
        return {"lm_head.weight": head}
    draft.target_head = head
    known = torch.zeros(len(head), dtype=torch.bool)
    known[ids] = True
    return {"lm_head.weight": head[ids].clone(), "d2t": ids - torch.arange(len(ids)), "t2d": known}


def head_rows(draft: Model, head: Tensor) -> Tensor:
    """The rows of the target's head [V, H] that the draft's head holds."""
    return head if draft.ids is None else head[draft.ids]


def _started(draft: Model, drafter: DrafterConfig, tensors: TargetTensors, start: Start) -> dict[str, Tensor]:
    """The tensors that ``drafter.init`` asks for. Those that this function adds later replace earlier ones."""
    own: dict[str, Tensor] = {}
    if drafter.init.final_norm:
        norm = warm_start.norm_weight(tensors.final_norm, tensors.config)
        own["norm.weight"] = norm * logit_scale(tensors.config)
    if drafter.init.layers and start.layers:
        layers = {n: warm_start.plain_norms(layer, tensors.config) for n, layer in start.layers.items()}
        own |= warm_start.target_layers(draft, layers)
    if drafter.init.bigram is not None and start.pairs is not None and drafter.markov_rank:
        own |= warm_start.markov_bigrams(draft, start.pairs, drafter.init.bigram)
    if start.draft:
        own |= warm_start.other_draft(draft, start.draft, str(drafter.init.draft))
    return own
