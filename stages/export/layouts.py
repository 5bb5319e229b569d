"""The two layouts that engines share, one for block drafters (DSpark, DFlash) and one for Eagle3.

docs/engines.md has a table of the readers and the sources. Engines number the taps by hidden states (layer + 1) or by
layers.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from data_specs.export import ZERO_HEAD, ZERO_HEAD_RANK
from pipeline.drafts.base import FROZEN
from pipeline.drafts.registry import FAMILIES, FILL_IN
from stages.export.source import DraftSource, EngineLayout, plain

STATES, LAYERS = "eagle_aux_hidden_state_layer_ids", "eagle_config"  # vLLM's and llama.cpp's field; SGLang's
# Left out for Llama layers that all see everything, because readers may infer a window from the presence of a field.
WINDOW_FIELDS = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")


def counted_as_states(taps: tuple[int, ...]) -> list[int]:
    """Taps for readers that count hidden states: 0 is the embedding, L + 1 the output of layer L."""
    return [tap + 1 for tap in taps]


def block_layout(source: DraftSource) -> EngineLayout:
    """DSpark's native layout, or z-lab's for a 1+N DFlash without heads. It has no embedding and no whole head.

    Both names of the anchor convention are written. A draft without a sequential head gets one of zeros, which
    config.json marks, because DSpark's readers require one.
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
        if facts.rope != "default":  # mlx-dspark knows only the old name of scaled positions
            config["rope_scaling"] = config["rope_parameters"]
        config["dflash_config"] = config.get("dflash_config", {}) | taps
        return EngineLayout(config | {"architectures": [FILL_IN]}, source.own_tensors)
    config |= taps | {"architectures": [f"{FAMILIES[facts.family].NAME}DSparkModel"]} | heads(source)
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
    """W1 [V, r] and W2 [D, r] of zeros for a draft without a sequential head; nothing for other drafts."""
    if not source.facts.zero_head:
        return {}
    rows, dtype = source.fields["vocab_size"], source.tensors["norm.weight"].dtype
    sizes = {"markov_w1": rows, "markov_w2": source.fields.get("draft_vocab_size") or rows}
    return {f"markov_head.{n}.weight": torch.zeros(s, ZERO_HEAD_RANK, dtype=dtype) for n, s in sizes.items()}


def eagle3_layout(source: DraftSource, taps: tuple[str, ...]) -> EngineLayout:
    """Eagle3 with embedding and head, in the reference layout for a Llama layer, in vLLM's own for a Qwen3 layer.

    ``taps`` are the fields in which the taps are written (``STATES``, ``LAYERS`` or both). If the head is the target's,
    ``draft_vocab_size`` is null: SGLang would make a head of the given size, and llama.cpp recognises Eagle3 by the
    field.
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
    if not llama:
        return EngineLayout(config, source.tensors)
    tensors = {re.sub(r"^layers\.0\.", "midlayer.", name): value for name, value in source.tensors.items()}
    return EngineLayout(config, tensors)
