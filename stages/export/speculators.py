"""The format of vLLM's library speculators (0.9.0): an own config with the verifier's name and taps as hidden states.

If the library is installed, its classes make the config from ours and check our tensors; otherwise ours are written.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch

from pipeline.config import ConfigError
from stages.export.layouts import STATES, block_layout, counted_as_states, heads
from stages.export.source import DraftFacts, DraftSource, EngineLayout, plain

LIBRARY = "speculators"
VERSION = "0.9.0"  # of the format that is written here
CLASSES = {"dspark": "DSparkSpeculator", "dflash": "DFlashSpeculator", "eagle3": "Eagle3Speculator"}
DROPPED = ("auto_map", "transformers_version")  # fields in which the library describes itself


def plan(source: DraftSource, verifier: str | None, architectures: list[str]) -> EngineLayout:
    """Config and tensors. The target is ``verifier`` (Hub id or None), and its config.json has ``architectures``."""
    facts, layers = source.facts, plain(source)
    dtype = layers.pop("dtype")
    if facts.window:
        layers["is_causal"] = False  # vLLM would run blocks of sliding layers causally
    config = {
        "architectures": [CLASSES[facts.kind]],
        "draft_vocab_size": source.fields.get("draft_vocab_size") or source.fields["vocab_size"],
        "dtype": dtype,
        "speculators_config": _speculators_config(facts, verifier, architectures),
        "speculators_model_type": facts.kind,
        "speculators_version": VERSION,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": layers,
    }
    if facts.kind == "eagle3":
        return EngineLayout(config | _eagle3(facts), source.tensors)
    return EngineLayout(config | _block(source), block_layout(source).tensors)


def _block(source: DraftSource) -> dict[str, Any]:
    """The fields of DFlash, and of DSpark, which is a DFlash with heads."""
    own = {
        "aux_hidden_state_layer_ids": counted_as_states(source.facts.taps),
        "block_size": source.fields["block_size"],
        "mask_token_id": source.fields["mask_token_id"],
        "sample_from_anchor": source.facts.anchor_first,
        "sliding_window_non_causal": True,  # otherwise vLLM would run a DFlash's blocks causally
    }
    return own | (heads(source) if source.facts.kind == "dspark" else {})


def _eagle3(facts: DraftFacts) -> dict[str, Any]:
    """The fields of Eagle3. ``norm_before_residual`` is always written, because its default is true."""
    return {
        STATES: counted_as_states(facts.taps),
        "embed_requires_grad": False,
        "fc_norm": False,
        "norm_before_fc": False,
        "norm_before_residual": facts.norm_before_residual,
        "norm_output": False,
    }


def _speculators_config(facts: DraftFacts, verifier: str | None, architectures: list[str]) -> dict[str, Any]:
    greedy = {
        "accept_tolerance": 0.0,
        "proposal_type": "greedy",
        "speculative_tokens": facts.drafts,
        "verifier_accept_k": 1,
    }
    return {
        "algorithm": facts.kind,
        "default_proposal_method": "greedy",
        "proposal_methods": [greedy],
        "verifier": {"architectures": architectures, "name_or_path": verifier},
    }


def through_library(layout: EngineLayout) -> EngineLayout:
    """``layout`` as the installed library makes it, or unchanged if the library is not installed.

    Raises ``ConfigError`` if the library expects or writes other tensors.
    """
    if importlib.util.find_spec(LIBRARY) is None:
        return layout
    library: Any = importlib.import_module(LIBRARY)
    config = library.SpeculatorModelConfig.from_dict(layout.config)
    config.transformer_layer_config._attn_implementation = "eager"
    model = library.SpeculatorModel.registered_model_class_from_config(config)(config)
    found = model.load_state_dict(layout.tensors, strict=False, assign=True)
    optional = set(model._keys_to_ignore_on_load_missing)
    wrong = [*found.unexpected_keys, *(name for name in found.missing_keys if name not in optional)]
    if wrong:
        raise ConfigError(f"export=speculators: the library {LIBRARY} expects other tensors: {sorted(wrong)}")
    ignored = set(model._keys_to_ignore_on_save)
    ours, theirs = layout.tensors, {n: v for n, v in model.state_dict().items() if n not in ignored}
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs or not torch.equal(ours[name], theirs[name]):
            raise ConfigError(f"export=speculators: the library {LIBRARY} would write another tensor {name}")
    values = {name: value for name, value in config.to_diff_dict().items() if name not in DROPPED}
    values["transformer_layer_config"] = layout.config["transformer_layer_config"]
    return EngineLayout(layout.config | values, layout.tensors)
