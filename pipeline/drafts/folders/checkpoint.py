"""Draft folders: ``config.json`` and ``model.safetensors``.

They are written in the native layout (no ``model.`` prefix) and read in every layout that foreign.py knows. Reading is
strict: a missing, unexpected, wrong-shaped or all-zero tensor is an error that names it. A server would load such a
draft, and none of its tokens would be accepted (pitfall 43). Embedding and head may be absent: they are the target's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from data_specs.draft import BLOCK_FIELDS, CONFIG, DEFAULTS, REQUIRED, WEIGHTS
from pipeline.drafts.backbone import Backbone
from pipeline.drafts.base import FROZEN, Draft
from pipeline.drafts.eagle3 import Eagle3
from pipeline.drafts.folders import foreign
from pipeline.drafts.folders.fields import CheckpointError, field_error
from pipeline.drafts.folders.foreign import Fields
from pipeline.drafts.heads import HEADS
from pipeline.drafts.model import Model, target_ids
from pipeline.drafts.registry import ARCHITECTURES, FAMILIES, FILL_IN, MODEL_TYPES, head_tensors
from pipeline.target.tensors import TargetTensors


def save(draft: Draft, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write ``draft`` into ``folder``. Trainable tensors are cast to ``dtype``; frozen ones keep their bits."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, value in draft.state_dict().items():
        keep = name in FROZEN or dtype is None or not value.is_floating_point()
        tensors[name] = value.detach().cpu().contiguous().to(value.dtype if keep else dtype)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = draft.config.to_dict()
    anchor_first = bool(config.get("sample_from_anchor", True))
    config |= {"sample_from_anchor": anchor_first, "dspark_bonus_anchor": not anchor_first}
    (folder / CONFIG).write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


def read_config(folder: Path) -> Any:
    """The draft's config with native names and the defaults of the native layout. Errors name the field."""
    path = folder / CONFIG
    given = foreign.native_fields(path, _json(path))
    values: Fields = DEFAULTS | given
    for name in REQUIRED:
        if values.get(name) is None:
            raise field_error(path, name)
    name = next(iter(values["architectures"]), "nothing")
    if name not in ARCHITECTURES:
        raise field_error(path, "architectures", f"one of {sorted(ARCHITECTURES)}", name)
    if values["model_type"] not in MODEL_TYPES:
        raise field_error(path, "model_type", f"one of {sorted(MODEL_TYPES)}", values["model_type"])
    values["sample_from_anchor"] = _anchor_first(path, given, default=name != FILL_IN)
    if name == FILL_IN and values["sample_from_anchor"]:
        raise CheckpointError(
            f"{path}: field sample_from_anchor: expected false, got true. Engines refuse such a {FILL_IN} or run it as "
            "1+N. If it was trained to sample from the anchor, change the field architectures to "
            f'["{FAMILIES[MODEL_TYPES[values["model_type"]]].NAME}DSparkModel"], a DSpark without heads'
        )
    if values["model_type"] == "gemma4_text" and not values.get("layer_types"):
        raise field_error(path, "layer_types")
    _check_taps(path, values, needed=issubclass(ARCHITECTURES[name], Backbone | Eagle3))
    if issubclass(ARCHITECTURES[name], Backbone):
        _check_block(path, values)
    elif values.setdefault("block_size", values.get("ttt_length")) is None:
        raise field_error(path, "block_size")
    with _fields_that_fit(path):
        return FAMILIES[MODEL_TYPES[values["model_type"]]].make_config(values)


@contextmanager
def _fields_that_fit(path: Path) -> Iterator[None]:
    """Turn the errors of transformers and torch about values that fit no draft into a ``CheckpointError``."""
    try:
        yield
    except (
        ArithmeticError, AttributeError, LookupError, RuntimeError, StrictDataclassError, TypeError, ValueError,
    ) as error:  # fmt: skip
        got = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{path}: expected fields that make a draft, got: {got}") from error


def _anchor_first(path: Path, given: Fields, default: bool) -> bool:
    """The anchor convention that either field states. ``CheckpointError`` if the two fields contradict each other."""
    told = [bool(given["sample_from_anchor"])] if given.get("sample_from_anchor") is not None else []
    told += [not given["dspark_bonus_anchor"]] if given.get("dspark_bonus_anchor") is not None else []
    if len(set(told)) > 1:
        raise CheckpointError(f"{path}: sample_from_anchor and dspark_bonus_anchor contradict each other")
    return told[0] if told else default


def _json(path: Path) -> Fields:
    if not path.is_file():
        raise CheckpointError(f"{path.parent}: expected a draft folder, but it holds no {CONFIG}")
    try:
        return dict(json.loads(path.read_text()))
    except (RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: expected a JSON object, got: {error}") from None


def _check_taps(path: Path, values: Fields, needed: bool) -> None:
    """Raise ``CheckpointError`` unless the taps are different layers."""
    taps = values["target_layer_ids"]
    if needed and not taps:
        raise field_error(path, "target_layer_ids", "at least one layer", taps)
    if len(set(taps)) < len(taps) or not all(isinstance(tap, int) and tap >= -1 for tap in taps):
        raise field_error(path, "target_layer_ids", "different layers, each -1 or above", taps)


def _check_block(path: Path, values: Fields) -> None:
    """Raise ``CheckpointError`` for a missing or impossible field of a block drafter."""
    for name in BLOCK_FIELDS:
        if values.get(name) is None:
            raise field_error(path, name)
    if values["markov_rank"] and values["markov_head_type"] not in HEADS:
        raise field_error(path, "markov_head_type", f"one of {sorted(HEADS)}", values["markov_head_type"])
    rows, least = values["vocab_size"], 1 if values["sample_from_anchor"] else 2
    if not 0 <= values["mask_token_id"] < rows:
        raise field_error(path, "mask_token_id", f"a row below {rows}", values["mask_token_id"])
    if values["block_size"] < least:
        raise field_error(path, "block_size", f"at least {least}", values["block_size"])


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a draft folder, with native names. ``CheckpointError`` if its safetensors file is not readable."""
    path = folder / WEIGHTS
    if not path.is_file():  # reading a pipe would wait for ever
        raise CheckpointError(f"{path}: expected a safetensors file, found none")
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: expected a safetensors file, got: {error}") from None
    return foreign.native_tensors(path, _json(folder / CONFIG), tensors)


def read(folder: Path) -> tuple[Any, dict[str, Tensor]]:
    """Config and tensors of a draft, checked as strictly as in ``load``, but without its target.

    Embedding and head may be absent. A reduced head may not, because the target's head has other rows.
    """
    planned, tensors = _read(folder)
    absent = set(FROZEN[:1] if planned.d2t is not None else FROZEN) - tensors.keys()
    draft_ids(folder / WEIGHTS, tensors, planned.config.vocab_size)
    check(folder / WEIGHTS, tensors, planned, absent)
    return planned.config, tensors


def _read(folder: Path) -> tuple[Model, dict[str, Tensor]]:
    """The draft on the meta device, which allocates nothing, and the tensors of its file, which are not checked yet."""
    config, tensors = read_config(folder), read_tensors(folder)
    layers = getattr(config, "num_target_layers", None)
    if layers is not None and max(config.target_layer_ids, default=-1) >= layers:
        got = config.target_layer_ids
        raise field_error(folder / CONFIG, "target_layer_ids", f"layers below {layers}", got)
    with _fields_that_fit(folder / CONFIG), torch.device("meta"):
        return make(config), tensors


def make(config: Any) -> Model:
    """A draft of the algorithm and family that ``config`` names. Its weights are arbitrary."""
    return ARCHITECTURES[config.architectures[0]](config, FAMILIES[MODEL_TYPES[config.model_type]])


def load(folder: Path, tensors: TargetTensors | None = None) -> Model:
    """Read a draft. If the folder has no embedding or head, they come from ``tensors``, which are the target's.

    All checks come before the draft is allocated.
    """
    path = folder / WEIGHTS
    planned, weights = _read(folder)
    ids = draft_ids(path, weights, planned.config.vocab_size if tensors is None else len(tensors.embedding))
    if tensors is not None:
        embedding = {"embed_tokens.weight": tensors.embedding}
        weights = embedding | head_tensors(planned, tensors.head, ids) | weights
    check(path, weights, planned)
    draft = make(planned.config)
    draft.target_head = planned.target_head
    draft.load_state_dict(weights, assign=True)
    draft.freeze()
    return draft.eval()


def draft_ids(path: Path, weights: dict[str, Tensor], rows: int) -> Tensor | None:
    """The target ids int64 [D] that ``d2t`` encodes; None if there is no ``d2t``.

    Raises ``CheckpointError`` if ids are not below the target's ``rows``, repeat, or contradict ``t2d``.
    """
    if "d2t" not in weights:
        return None
    if (offsets := weights["d2t"]).ndim != 1 or offsets.dtype != torch.int64:
        found = f"{offsets.dtype} {tuple(offsets.shape)}"
        raise CheckpointError(f"{path}: tensor d2t: expected int64 (draft_vocab_size,), got {found}")
    ids = target_ids(offsets)
    if not ((ids >= 0) & (ids < rows)).all() or len(ids.unique()) < len(ids):
        raise CheckpointError(f"{path}: tensor d2t: expected offsets to different target ids below {rows}")
    known = weights.get("t2d")
    if known is not None and (known.shape != (rows,) or int(known.sum()) != len(ids) or not known[ids].all()):
        raise CheckpointError(f"{path}: tensor t2d: expected True for exactly the {len(ids)} tokens of d2t")
    return ids


def check(path: Path, weights: dict[str, Tensor], draft: Model, absent: Collection[str] = ()) -> None:
    """Compare names and shapes of ``weights`` with ``draft``, except for those that may be ``absent``.

    ``CheckpointError`` names the first difference.
    """
    expected = {name: tuple(value.shape) for name, value in draft.state_dict().items() if name not in absent}
    for name in sorted(expected.keys() - weights.keys()):
        raise CheckpointError(f"{path}: tensor {name} of shape {expected[name]} is missing")
    for name in sorted(weights.keys() - expected.keys()):
        raise CheckpointError(f"{path}: tensor {name} is not part of this draft")
    for name, value in weights.items():
        shape = tuple(value.shape)
        if shape != expected[name]:
            raise CheckpointError(f"{path}: tensor {name}: expected shape {expected[name]}, got {shape}")
        # If the draft vocabulary is the tokens 0 .. D-1, all offsets in d2t are 0.
        if not name.endswith("bias") and name != "d2t" and not value.any():
            raise CheckpointError(f"{path}: tensor {name} is all zero")
