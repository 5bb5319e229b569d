"""Which drafters there are, and how a new draft is made for a target."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pipeline.config import ConfigError
from pipeline.drafts import algorithms
from pipeline.drafts.dspark import DSpark
from pipeline.drafts.model import Model
from pipeline.drafts.starts import warm_start

if TYPE_CHECKING:
    from pipeline.config import DrafterConfig
    from pipeline.target.tensors import TargetTensors

FAMILIES: dict[str, ModuleType] = {
    name: importlib.import_module(family.module) for name, family in algorithms.FAMILIES.items()
}
ALGORITHMS: dict[str, type[Model]] = {
    name: getattr(importlib.import_module(a.module), a.name) for name, a in algorithms.ALGORITHMS.items()
}
FILL_IN = "DFlashDraftModel"  # z-lab's name of 1+N DFlash, whatever the family of its layers
# architectures[0] of config.json -> class; the family of the layers is that of model_type.
ARCHITECTURES: dict[str, type[Model]] = {
    f"{family.NAME}{kind.NAME}Model": kind for family in FAMILIES.values() for kind in ALGORITHMS.values()
} | {FILL_IN: DSpark}
MODEL_TYPES = {family.model_type: name for name, family in algorithms.FAMILIES.items()}
# Fields of the target's text config that describe every draft.
SHARED = (
    "hidden_size", "num_attention_heads", "max_position_embeddings", "rms_norm_eps", "pad_token_id", "bos_token_id",
    "eos_token_id", "final_logit_softcapping",
)  # fmt: skip


@dataclass(frozen=True)
class Supervised:
    """What training needs to know of a drafter before there is a draft.

    ``drafts`` a block (G), of which the first ``trained`` have a loss, weighted by exp(-(k-1)/``decay``).
    """

    drafts: int
    trained: int
    decay: float


@dataclass(frozen=True)
class Start:
    """What a new draft may take from elsewhere; used where ``drafter.init`` asks for it.

    ``layers``: raw weights of the target's last layers; ``pairs``: neighbouring tokens (previous, answer) int64 [n]
    each; ``draft``: tensors of another draft, ``ids``: the reduced draft vocabulary, int64 [D] ascending.
    """

    layers: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    pairs: tuple[Tensor, Tensor] | None = None
    draft: Mapping[str, Tensor] = field(default_factory=dict)
    ids: Tensor | None = None


def supervised(drafter: DrafterConfig) -> Supervised:
    """See ``Supervised``; without a configured decay it is the algorithm's own."""
    drafts = drafter.block_size - (0 if drafter.sample_from_anchor else 1)
    default = ALGORITHMS[drafter.algorithm].default_decay(drafter.block_size)
    trained = drafts if drafter.train_steps is None else min(drafts, drafter.train_steps)
    return Supervised(drafts, trained, drafter.loss.decay if drafter.loss.decay is not None else default)


def family_of(drafter: DrafterConfig, target: Any) -> str:
    """The family of the draft's layers: the configured one, else gemma4 for a Gemma target and qwen3 for others."""
    return drafter.family or ("gemma4" if str(target.model_type).startswith("gemma") else "qwen3")


def chosen_taps(drafter: DrafterConfig, taps: list[int]) -> list[int]:
    """Places of the taps that the drafter reads among the cache's ``taps``: all, or ``num_taps`` spread evenly."""
    count = len(taps) if drafter.num_taps is None else drafter.num_taps
    if count > len(taps):
        raise ConfigError(f"drafter.num_taps={count}: the cache has the taps {taps}")
    if count <= 1:
        return [len(taps) // 2] * count
    return [round(i * (len(taps) - 1) / (count - 1)) for i in range(count)]


def draft_config(
    drafter: DrafterConfig,
    target: Any,
    rows: int,
    taps: list[int],
    mask_token_id: int | None,
    reduced: int | None = None,
) -> Any:
    """The draft's config: the target's sizes (``rows``: its embedding rows) and the drafter's choices.

    ``reduced``: size of the draft vocabulary where it is smaller. Raises ``ConfigError`` for a target whose logits are
    scaled: no draft here does that, and one that does not would learn from a distribution that is not the target's.
    """
    for name in ("logit_scale", "logits_scaling"):
        if getattr(target, name, None) not in (None, 1, 1.0):
            raise ConfigError(
                f"target: {name}={getattr(target, name)}: drafts for scaled logits are not supported"
            )
    family, kind = FAMILIES[family_of(drafter, target)], ALGORITHMS[drafter.algorithm]
    shared = {key: getattr(target, key) for key in SHARED if getattr(target, key, None) is not None}
    own: dict[str, Any] = {
        "architectures": [FILL_IN if _is_fill_in(drafter) else f"{family.NAME}{kind.NAME}Model"],
        "vocab_size": rows,
        "intermediate_size": getattr(target, "intermediate_size", None) or 3 * target.hidden_size,
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
    return family.make_config(
        shared | family.config_fields(target, drafter.depth, drafter.sliding_window) | own
    )


def _is_fill_in(drafter: DrafterConfig) -> bool:
    """Whether this is what z-lab calls DFlash: 1+N, and nothing but the backbone."""
    bare = drafter.markov_rank == 0 and not drafter.confidence_head
    return ALGORITHMS[drafter.algorithm] is DSpark and bare and not drafter.sample_from_anchor


def build(
    drafter: DrafterConfig,
    tensors: TargetTensors,
    taps: list[int],
    mask_token_id: int | None,
    start: Start | None = None,
) -> Model:
    """A new draft (fp32; embedding and head are the target's own tensors, frozen), seeded by torch's generator."""
    start, rows = start or Start(), len(tensors.embedding)
    reduced = None if start.ids is None else len(start.ids)
    config = draft_config(drafter, tensors.config, rows, taps, mask_token_id, reduced)
    draft = ALGORITHMS[drafter.algorithm](config, FAMILIES[family_of(drafter, tensors.config)])
    _initialise(draft, config.initializer_range)
    own: dict[str, Tensor] = {
        "embed_tokens.weight": tensors.embedding,
        **head_tensors(draft, tensors.head, start.ids),
    }
    draft.load_state_dict(own, strict=False, assign=True)
    draft.load_state_dict(_started(draft, drafter, tensors, start), strict=False, assign=True)
    draft.freeze()
    return draft


def head_tensors(draft: Model, head: Tensor, ids: Tensor | None) -> dict[str, Tensor]:
    """The draft's head from the target's [V, H], with the tables of a reduced vocabulary ``ids`` int64 [D].

    The whole head is left with the draft for its loss.
    """
    if ids is None or draft.d2t is None:
        return {"lm_head.weight": head}
    draft.target_head = head
    known = torch.zeros(len(head), dtype=torch.bool)
    known[ids] = True
    return {"lm_head.weight": head[ids].clone(), "d2t": ids - torch.arange(len(ids)), "t2d": known}


def head_rows(draft: Model, head: Tensor) -> Tensor:
    """Those rows of the target's head [V, H] that the draft's head holds."""
    return head if draft.ids is None else head[draft.ids]


def _started(draft: Model, drafter: DrafterConfig, tensors: TargetTensors, start: Start) -> dict[str, Tensor]:
    """Tensors that ``drafter.init`` asks for; what comes later in this function wins."""
    own: dict[str, Tensor] = {}
    if drafter.init.final_norm:
        own["norm.weight"] = warm_start.norm_weight(tensors.final_norm, tensors.config)
    if drafter.init.layers and start.layers:
        layers = {
            number: warm_start.plain_norms(layer, tensors.config) for number, layer in start.layers.items()
        }
        own |= warm_start.target_layers(draft, layers)
    if drafter.init.bigram is not None and start.pairs is not None and drafter.markov_rank:
        own |= warm_start.markov_bigrams(draft, start.pairs, drafter.init.bigram)
    if start.draft:
        own |= warm_start.other_draft(draft, start.draft, str(drafter.init.draft))
    return own


def _initialise(draft: Model, std: float) -> None:
    """Normal weights for every product, as transformers starts a model."""
    for module in draft.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            torch.nn.init.normal_(module.weight, std=std)
            if isinstance(module, torch.nn.Linear) and module.bias is not None:
                torch.nn.init.zeros_(module.bias)
