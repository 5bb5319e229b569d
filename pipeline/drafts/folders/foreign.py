"""Translates the draft folders of other projects into the native layout: fields of config.json, names of tensors.

    speculators     ``speculators_model_type``: layers in ``transformer_layer_config``, taps counted from 1
    Eagle3          ``LlamaForCausalLMEagle3`` (``midlayer.*``) and vLLM's ``Eagle3Qwen3ForCausalLM``
    SpecForge       ``DSparkDraftModel``, fields inside ``dflash_config``; names may begin with ``logit_head.``
    z-lab DFlash    ``DFlashDraftModel``: native, except for the fields inside ``dflash_config``

All other folders are read as native. In a native ``target_layer_ids``, L is the output of decoder layer L; projects
that count hidden states (0 is the embedding) write L + 1. If a field asks for something that draftline does not compute
(causal blocks, further norms), the error names the field: such a draft would load, but no token would be accepted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from data_specs.export import EAGLE3_STEPS, ZERO_HEAD
from pipeline.drafts.folders.fields import CheckpointError, check_fields, field_error

Fields = dict[str, Any]  # of a config.json
EAGLE3 = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM")
FAMILY_NAMES = {"qwen3": "Qwen3", "llama": "Llama", "gemma4_text": "Gemma4"}
NESTED = ("dflash_config", "dspark_config")  # sections that may hold fields of the top level
PREFIXES = (("logit_head.", ""), ("midlayer.", "layers.0."))
# Tensors of the verifier, in folders of speculators before 0.9.
VERIFIER = ("verifier_norm.weight", "verifier_lm_head.weight")
# Fields for computations that no draft here has, with the only value that is accepted.
FIXED: Fields = {
    "norm_before_fc": False, "fc_norm": False, "use_aux_norm": False, "norm_output": False, "is_causal": False,
    "causal": False, "dflash_query_causal": False, "use_swa": False, "shift_label": False, "attention_sink_bias": False,
    "selector_rank": 0, "conv_kernel_size": 0, "use_aux_hidden_state": True, "rope_is_neox_style": True,
}  # fmt: skip
SPECULATORS = {"dspark": "DSpark", "dflash": "DSpark", "eagle3": "Eagle3"}


def native_fields(path: Path, given: Fields) -> Fields:
    """The fields of ``given`` (config.json at ``path``) with native names. ``CheckpointError`` names a wrong field."""
    check_fields(path, given)
    values = _hoisted(path, given)
    if values.get("speculators_model_type"):
        values = _from_speculators(path, values)
    name = next(iter(values.get("architectures") or []), "")
    if name in EAGLE3:
        values = _from_eagle3(path, values)
    elif name == "DSparkDraftModel":
        values["architectures"] = [f"{_family(path, values)}DSparkModel"]
    if isinstance(values.get("rope_parameters"), dict):  # the others are for readers that lack it
        values = {k: v for k, v in values.items() if k not in ("rope_theta", "rope_scaling")}
    if (size := values.get("target_hidden_size")) not in (None, values.get("hidden_size")):
        raise field_error(path, "target_hidden_size", f"hidden_size {values.get('hidden_size')}", size)
    if values.get(ZERO_HEAD):
        values |= {"markov_rank": 0, "markov_head_type": "vanilla"}
    return {k: v for k, v in values.items() if k != ZERO_HEAD}


def native_tensors(path: Path, given: Fields, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """``tensors`` (of the file ``path``) with native names; ``given`` is the content of config.json.

    A Markov head that the config marks as zero is removed. Raises ``CheckpointError`` if it is not zero, or if two
    tensors have the same native name.
    """
    renamed: dict[str, Tensor] = {}
    for name, value in tensors.items():
        for old, new in PREFIXES:
            name = new + name.removeprefix(old) if name.startswith(old) else name
        if name in renamed:
            raise CheckpointError(f"{path}: tensor {name} is stored under two names; expected one")
        renamed[name] = value
    if given.get("speculators_model_type"):
        renamed = {name: value for name, value in renamed.items() if name not in VERIFIER}
    return _without_zero_head(path, given, _without_full_tables(given, renamed))


def _hoisted(path: Path, given: Fields) -> Fields:
    """``given`` with the fields of nested sections moved to the top level. A contradiction is a ``CheckpointError``."""
    values = dict(given)
    for section in NESTED:
        for key, value in (given.get(section) or {}).items():
            if key in given and given[key] not in (None, value):
                raise CheckpointError(f"{path}: fields {key} and {section}.{key} contradict each other")
            values[key] = value
    eagle = given.get("eagle_config") or {}
    for key, wanted in FIXED.items():
        got = eagle.get(key, values.get(key))
        if got is not None and got != wanted:
            raise field_error(path, key, wanted, f"{got}, which no draft of draftline computes")
    return {k: v for k, v in values.items() if k not in NESTED and k not in FIXED}


def _family(path: Path, values: Fields) -> str:
    kind = values.get("model_type", "qwen3")
    if kind not in FAMILY_NAMES:
        raise field_error(path, "model_type", f"one of {sorted(FAMILY_NAMES)}", kind)
    return FAMILY_NAMES[kind]


def _from_speculators(path: Path, values: Fields) -> Fields:
    """Native fields of a config that the library speculators wrote."""
    kind, layers = values["speculators_model_type"], values.get("transformer_layer_config")
    if kind not in SPECULATORS:
        raise field_error(path, "speculators_model_type", f"one of {sorted(SPECULATORS)}", kind)
    if not isinstance(layers, dict):
        raise field_error(path, "transformer_layer_config")
    methods = (values.get("speculators_config") or {}).get("proposal_methods") or [{}]
    drafts = methods[0].get("speculative_tokens")
    replaced = ("transformer_layer_config", "model_type")
    flat = layers | {k: v for k, v in values.items() if k not in replaced and v is not None}
    flat["architectures"] = [f"{_family(path, flat)}{SPECULATORS[kind]}Model"]
    if kind == "eagle3":
        flat.setdefault("norm_before_residual", True)  # vLLM's default
        flat.setdefault("block_size", drafts or EAGLE3_STEPS)
        return flat | {"target_layer_ids": _taps(path, flat, "eagle_aux_hidden_state_layer_ids")}
    slides = "sliding_attention" in (layers.get("layer_types") or [])
    if slides and not (got := values.get("sliding_window_non_causal")):
        expected = "true, because no draft of draftline has causal blocks"
        raise field_error(path, "sliding_window_non_causal", expected, got)
    flat["target_layer_ids"] = _taps(path, flat, "aux_hidden_state_layer_ids")
    flat["sample_from_anchor"] = _anchor_first(path, values, drafts)
    if kind == "dflash" and not flat["sample_from_anchor"]:
        flat["architectures"] = ["DFlashDraftModel"]
    return flat


def _anchor_first(path: Path, values: Fields, drafts: int | None) -> bool:
    """The anchor convention of a speculators config: its field, or what block size and number of drafts imply."""
    told, block = values.get("sample_from_anchor"), values.get("block_size")
    if told is None:
        if block is None or drafts is None or drafts not in (block, block - 1):
            raise field_error(path, "sample_from_anchor")
        return bool(drafts == block)
    if block is not None and drafts == (block - 1 if told else block):
        fields = f"sample_from_anchor={told}, speculative_tokens={drafts} and block_size={block}"
        raise CheckpointError(f"{path}: fields {fields} contradict each other")
    return bool(told)


def _from_eagle3(path: Path, values: Fields) -> Fields:
    """Native fields of an Eagle3 in the reference layout.

    Taps at the top level count hidden states (vLLM, llama.cpp). Taps in ``eagle_config`` alone are layers (SGLang).
    """
    values = values | {"architectures": [f"{_family(path, values)}Eagle3Model"]}
    eagle = values.pop("eagle_config", None) or {}
    if values.get("eagle_aux_hidden_state_layer_ids"):
        values["target_layer_ids"] = _taps(path, values, "eagle_aux_hidden_state_layer_ids")
    elif eagle.get("eagle_aux_hidden_state_layer_ids"):
        values["target_layer_ids"] = list(eagle["eagle_aux_hidden_state_layer_ids"])
    else:
        raise CheckpointError(
            f"{path}: field eagle_aux_hidden_state_layer_ids is missing, so engines would guess the taps. "
            "Add the layers that the draft was trained with, each plus 1"
        )
    taps = len(values["target_layer_ids"])
    if (count := values.get("num_aux_hidden_states", taps)) != taps:
        raise field_error(path, "num_aux_hidden_states", taps, count)
    values.setdefault("block_size", values.get("ttt_length") or EAGLE3_STEPS)
    return values


def _taps(path: Path, values: Fields, name: str) -> list[int]:
    """Native taps from the field ``name``, which counts hidden states and is removed from ``values``."""
    if not values.get(name):
        raise field_error(path, name)
    return [number - 1 for number in values.pop(name)]


def _without_full_tables(given: Fields, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """``tensors`` without d2t and t2d if they cover the whole vocabulary, because SpecForge writes them even then."""
    d2t, t2d = tensors.get("d2t"), tensors.get("t2d")
    whole = given.get("draft_vocab_size") in (None, given.get("vocab_size"))
    if not whole or d2t is None or len(d2t) != given.get("vocab_size") or d2t.any():
        return tensors
    if t2d is not None and not t2d.all():
        return tensors
    return {name: value for name, value in tensors.items() if name not in ("d2t", "t2d")}


def _without_zero_head(path: Path, given: Fields, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    if not given.get(ZERO_HEAD):
        return tensors
    head = {name: value for name, value in tensors.items() if name.startswith("markov_head.")}
    wanted = {"markov_head.markov_w1.weight", "markov_head.markov_w2.weight"}
    if set(head) != wanted or any(bool(value.any()) for value in head.values()):
        raise CheckpointError(f"{path}: field {ZERO_HEAD} is true: expected zeros in {sorted(wanted)}")
    return {name: value for name, value in tensors.items() if name not in head}
