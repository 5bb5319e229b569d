"""The two layouts that engines share: block drafters (DSpark, DFlash) and Eagle3. A format's file says which it takes.

Facts and sources: the table of the readers is in docs/engines.md; engines' names of the taps count hidden states
(layer + 1) or layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from data_specs.export import ZERO_HEAD, ZERO_HEAD_RANK
from pipeline.drafts.base import FROZEN
from pipeline.drafts.registry import FILL_IN
from stages.export.source import DraftSource, EngineLayout, family_name, plain

STATES, LAYERS = "eagle_aux_hidden_state_layer_ids", "eagle_config"  # vLLM's and llama.cpp's field; SGLang's
# Of a Llama config they say nothing where every layer sees everything; a reader may take their presence for a window.
WINDOW_FIELDS = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")


def counted_as_states(taps: tuple[int, ...]) -> list[int]:
    """Taps as readers number them that count hidden states: 0 the embedding, L + 1 the output of layer L."""
    return [tap + 1 for tap in taps]


def block_layout(source: DraftSource) -> EngineLayout:
    """DSpark's native layout, or z-lab's for a bare 1+N DFlash: no embedding, no head at full vocabulary.

    The convention of the anchor is said outright, under both of its names. A draft without a sequential head gets one
    of zeros, marked as such: DSpark's readers insist on one.
    """
    facts, fields = source.facts, source.fields
    taps = {"mask_token_id": fields["mask_token_id"], "target_layer_ids": list(facts.taps)}
    config = plain(source) | {
        "block_size": fields["block_size"],
        "sample_from_anchor": facts.anchor_first,
        "dspark_bonus_anchor": not facts.anchor_first,
    }
    if fields.get("num_target_layers") is not None:
        config["num_target_layers"] = fields["num_target_layers"]
    if facts.reduced:
        config["draft_vocab_size"] = fields["draft_vocab_size"]
    if facts.window:  # vLLM and SGLang would run blocks of sliding layers causally
        config["is_causal"] = False
        config["dflash_config"] = {"causal": False, **taps}
    if facts.kind == "dflash":
        if facts.rope != "default":  # mlx-dspark knows a scaling of the positions under its old name only
            config["rope_scaling"] = config["rope_parameters"]
        config["dflash_config"] = config.get("dflash_config", {}) | taps
        return EngineLayout(config | {"architectures": [FILL_IN]}, source.own_tensors)
    config |= taps | {"architectures": [f"{family_name(source)}DSparkModel"]} | heads(source)
    return EngineLayout(config, source.own_tensors | zero_head(source))


def heads(source: DraftSource) -> dict[str, Any]:
    """Fields of the sequential head and the confidence head."""
    facts = source.facts
    own = {
        "markov_rank": facts.rank or ZERO_HEAD_RANK,
        "markov_head_type": facts.head if facts.rank else "vanilla",
        "enable_confidence_head": facts.confidence,
        "confidence_head_with_markov": facts.confidence_with_markov,
    }
    if facts.learned_start:
        own["markov_learned_start"] = True
    return own | ({ZERO_HEAD: True} if facts.zero_head else {})


def zero_head(source: DraftSource) -> dict[str, Tensor]:
    """W1 [V, r] and W2 [D, r] of zeros for a draft that has no sequential head; nothing for others."""
    if not source.facts.zero_head:
        return {}
    rows = {"markov_w1": source.fields["vocab_size"]}
    rows["markov_w2"] = source.fields.get("draft_vocab_size") or rows["markov_w1"]
    like = source.tensors["norm.weight"]
    return {
        f"markov_head.{name}.weight": torch.zeros(n, ZERO_HEAD_RANK, dtype=like.dtype)
        for name, n in rows.items()
    }


def eagle3_layout(source: DraftSource, taps: tuple[str, ...]) -> EngineLayout:
    """Eagle3 with embedding and head: the reference layout for a Llama layer, vLLM's own for a Qwen3 layer.

    ``taps``: under which names they are written (``STATES``, ``LAYERS`` or both). ``draft_vocab_size`` is null where
    the head is the target's: SGLang would make up one of the size that is said; llama.cpp tells an Eagle3 by the field.
    """
    facts, llama = source.facts, source.facts.family == "llama"
    rows = source.fields.get("draft_vocab_size") or source.fields["vocab_size"]
    config = plain(source)
    if llama and not facts.window:
        config = {name: value for name, value in config.items() if name not in WINDOW_FIELDS}
    config |= {
        "architectures": ["LlamaForCausalLMEagle3" if llama else "Eagle3Qwen3ForCausalLM"],
        "block_size": source.fields["block_size"],
        "draft_vocab_size": rows if FROZEN[1] in source.tensors else None,
        "norm_before_residual": facts.norm_before_residual,
        "num_aux_hidden_states": len(facts.taps),
        "ttt_length": source.fields.get("ttt_length") or source.fields["block_size"],
    }
    if STATES in taps:
        config[STATES] = counted_as_states(facts.taps)
    if LAYERS in taps:
        config[LAYERS] = {STATES: list(facts.taps), "use_aux_hidden_state": True}
    tensors = source.tensors
    if llama:
        tensors = {_midlayer(name): value for name, value in tensors.items()}
    return EngineLayout(config, tensors)


def _midlayer(name: str) -> str:
    return "midlayer." + name.removeprefix("layers.0.") if name.startswith("layers.0.") else name
