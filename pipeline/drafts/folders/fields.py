"""The types and ranges of the fields of a draft's config.json, which are checked before the fields are used."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from data_specs.errors import UserError
from data_specs.export import ZERO_HEAD

MOST_LAYERS = 1000
MOST = 2**24  # of every other size, so that no product of two sizes overflows
Rule = tuple[str, Callable[[Any], bool]]  # what is expected, and whether a value fits


class CheckpointError(UserError):
    """A folder that holds no draft, or a draft that would not compute what it was trained to compute."""


def field_error(path: Path, name: str, expected: object = None, got: object = None) -> CheckpointError:
    """The error about field ``name`` of the file ``path``; without ``expected``, the field is missing."""
    found = " is missing" if expected is None else f": expected {expected}, got {got}"
    return CheckpointError(f"{path}: field {name}{found}")


def check_fields(path: Path, given: Mapping[str, Any], section: str = "") -> None:
    """Raise ``CheckpointError`` with the first known field of ``given`` whose value has a wrong type or range.

    ``path`` is that of config.json. ``section`` is the name of the object in it that holds ``given``, with a final dot.
    A field without a value (null) counts as absent.
    """
    for name, value in given.items():
        if value is not None and name in RULES:
            expected, fits = RULES[name]
            if not fits(value):
                text = repr(value)
                raise field_error(path, section + name, expected, text[:80] + "..." * (len(text) > 80))
            for part in value if name in LISTED else [value]:
                if isinstance(part, dict):
                    check_fields(path, part, f"{section}{name}.")


def _whole(least: int, most: int = MOST) -> Rule:
    return f"a whole number from {least} to {most}", lambda value: _is_whole(value) and least <= value <= most


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _list_of(expected: str, fits: Callable[[Any], bool]) -> Rule:
    def is_list(value: object) -> bool:
        return isinstance(value, list) and len(value) <= MOST_LAYERS and all(fits(item) for item in value)

    return f"a list of {expected}", is_list


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


OBJECT, LISTED = ("an object", _is(dict)), ("proposal_methods",)
KINDS: tuple[tuple[Rule, str], ...] = (
    (_whole(1, MOST_LAYERS), "num_hidden_layers num_target_layers"),
    (_whole(1),
        "hidden_size vocab_size intermediate_size head_dim global_head_dim num_attention_heads num_key_value_heads "
        "num_global_key_value_heads draft_vocab_size block_size ttt_length target_hidden_size"),
    (_whole(0),
        "markov_rank mask_token_id num_kv_shared_layers max_window_layers num_aux_hidden_states "
        "hidden_size_per_layer_input speculative_tokens"),
    (_whole(0, 2**53), "sliding_window max_position_embeddings original_max_position_embeddings"),
    (("true or false", _is(bool)),
        "markov_learned_start enable_confidence_head confidence_head_with_markov sample_from_anchor mlp_bias "
        "dspark_bonus_anchor norm_before_residual attention_bias use_sliding_window sliding_window_non_causal "
        f"attention_k_eq_v enable_moe_block use_double_wide_mlp tie_word_embeddings {ZERO_HEAD}"),
    (("a text", _is(str)),
        "model_type markov_head_type hidden_act hidden_activation speculators_model_type rope_type"),
    (("a finite number", _is_number),
        "rms_norm_eps final_logit_softcapping target_logit_scale rope_theta factor attention_dropout"),
    (_list_of("layers", _is_whole),
        "target_layer_ids aux_hidden_state_layer_ids eagle_aux_hidden_state_layer_ids"),
    (_list_of("texts", _is(str)), "architectures layer_types"),
    (_list_of("objects", _is(dict)), " ".join(LISTED)),
    (OBJECT,
        "dflash_config dspark_config eagle_config transformer_layer_config speculators_config rope_parameters "
        "full_attention sliding_attention rope_scaling"),
)  # fmt: skip
RULES = {name: rule for rule, names in KINDS for name in names.split()}
