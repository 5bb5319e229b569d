"""A draft to export: its fields and tensors under native names, and the facts that decide which engines can read it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pipeline.drafts.base import FROZEN
from pipeline.drafts.folders import checkpoint
from pipeline.drafts.registry import ARCHITECTURES, MODEL_TYPES

# The fields that describe the draft's own layers. All other fields of its config come from the target or the library.
PLAIN = (
    "attention_bias", "attention_dropout", "bos_token_id", "eos_token_id", "head_dim", "hidden_act", "hidden_size",
    "initializer_range", "intermediate_size", "layer_types", "max_position_embeddings", "max_window_layers",
    "mlp_bias", "model_type", "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "pad_token_id",
    "rms_norm_eps", "rope_parameters", "sliding_window", "use_cache", "use_sliding_window", "vocab_size",
    # Gemma 4
    "attention_k_eq_v", "enable_moe_block", "final_logit_softcapping", "global_head_dim", "hidden_activation",
    "hidden_size_per_layer_input", "num_global_key_value_heads", "num_kv_shared_layers", "use_double_wide_mlp",
)  # fmt: skip


@dataclass(frozen=True)
class DraftFacts:
    """What an engine must support to use the draft. ``kind``: dspark | dflash (1+N without heads) | eagle3 | mtp."""

    kind: str
    family: str
    drafts: int  # G
    taps: tuple[int, ...]
    anchor_first: bool
    rank: int
    head: str
    learned_start: bool
    confidence: bool
    confidence_with_markov: bool
    reduced: bool
    window: bool
    softcap: float | None
    rope: str
    norm_before_residual: bool

    @property
    def is_block(self) -> bool:
        """Whether it drafts a block in one pass."""
        return self.kind in ("dspark", "dflash")

    @property
    def zero_head(self) -> bool:
        """Whether DSpark's layout needs a Markov head of zeros for it."""
        return self.kind == "dspark" and self.rank == 0


@dataclass(frozen=True)
class DraftSource:
    """The fields of a native config.json, the tensors under native names, and the facts."""

    fields: dict[str, Any]
    tensors: dict[str, Tensor]
    facts: DraftFacts

    @property
    def dtype(self) -> str:
        """The name of the trained tensors' type in configs."""
        return str(self.tensors["norm.weight"].dtype).removeprefix("torch.")

    @property
    def own_tensors(self) -> dict[str, Tensor]:
        """All tensors except those that the target has: the embedding and a whole head."""
        shared = FROZEN[:1] if self.facts.reduced else FROZEN
        return {name: value for name, value in self.tensors.items() if name not in shared}


@dataclass(frozen=True)
class ServeFacts:
    """What the command that serves an export depends on, besides the draft and its target.

    ``draft_sampling`` is how the draft chose its tokens in its evaluation (target | greedy), None if unknown.
    ``files`` are the names of the files in the export.
    """

    draft_sampling: str | None = None
    files: Collection[str] = ()


UNTOLD = ServeFacts()


@dataclass(frozen=True)
class EngineLayout:
    """The contents of config.json and model.safetensors of an export."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]


def read_source(folder: Path) -> DraftSource:
    """The draft in ``folder`` (native or foreign), strictly checked. ``UserError`` names a wrong field or tensor."""
    config, tensors = checkpoint.read(folder)
    return DraftSource(_fields(config), tensors, facts_of(config))


def _fields(config: Any) -> dict[str, Any]:
    """The config's fields. Gemma's sizes of heads by layer type get the flat form that every reader knows."""
    fields = dict(config.to_dict())
    if config.model_type == "gemma4_text":
        own = config.per_layer_config[0]
        fields |= dict.fromkeys(("head_dim", "global_head_dim"), own.head_dim)
        kv_heads = ("num_key_value_heads", "num_global_key_value_heads")
        fields |= dict.fromkeys(kv_heads, own.num_key_value_heads)
    return fields


def facts_of(config: Any) -> DraftFacts:
    """The facts about a draft with the config ``config`` (as ``checkpoint.read_config`` gives it)."""
    kind = ARCHITECTURES[config.architectures[0]].NAME.lower()
    rank, confidence = config.markov_rank, bool(config.enable_confidence_head)
    anchor_first = bool(config.sample_from_anchor)
    if kind == "dspark" and not (rank or confidence or anchor_first):
        kind = "dflash"
    return DraftFacts(
        kind=kind,
        family=MODEL_TYPES[config.model_type],
        drafts=config.block_size - (0 if anchor_first or kind in ("eagle3", "mtp") else 1),
        taps=tuple(config.target_layer_ids),
        anchor_first=anchor_first,
        rank=rank,
        head=config.markov_head_type if rank else "none",
        learned_start=bool(rank and config.markov_learned_start),
        confidence=confidence,
        confidence_with_markov=bool(confidence and config.confidence_head_with_markov),
        reduced=(getattr(config, "draft_vocab_size", None) or config.vocab_size) < config.vocab_size,
        window="sliding_attention" in (getattr(config, "layer_types", None) or []),
        softcap=getattr(config, "final_logit_softcapping", None),
        rope=_full_rope(getattr(config, "rope_parameters", None)).get("rope_type", "default"),
        norm_before_residual=bool(getattr(config, "norm_before_residual", False)),
    )


def _full_rope(parameters: dict[str, Any] | None) -> dict[str, Any]:
    """The rotary settings of the full-attention layers, or the flat settings of all layers."""
    rope = parameters or {}
    full = rope.get("full_attention")
    return full if isinstance(full, dict) else rope


def plain(source: DraftSource) -> dict[str, Any]:
    """The fields of the draft's layers, without those that only the target has.

    ``rope_theta`` is added to ``rope_parameters`` because some readers know only one of them.
    """
    own = {name: source.fields[name] for name in PLAIN if name in source.fields}
    if source.facts.family != "gemma4" and own.get("final_logit_softcapping") is None:
        own.pop("final_logit_softcapping", None)  # without this field, the reader of a Gemma would take 30
    if (theta := _full_rope(own.get("rope_parameters")).get("rope_theta")) is not None:
        own["rope_theta"] = theta
    return own | {"dtype": source.dtype, "tie_word_embeddings": False}


def native_fields(source: DraftSource) -> dict[str, Any]:
    """The config.json of a native folder with this draft."""
    own = (
        "architectures", "num_target_layers", "target_layer_ids", "block_size", "mask_token_id", "markov_rank",
        "markov_head_type", "markov_learned_start", "enable_confidence_head", "confidence_head_with_markov",
        "draft_vocab_size", "ttt_length", "norm_before_residual",
    )  # fmt: skip
    fields = {name: source.fields[name] for name in own if source.fields.get(name) is not None}
    first = source.facts.anchor_first
    return plain(source) | fields | {"sample_from_anchor": first, "dspark_bonus_anchor": not first}
