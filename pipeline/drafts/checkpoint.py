"""Draft folders in the native layout: ``config.json`` and ``model.safetensors`` (no ``model.`` prefix).

Reading is strict: a missing, unexpected, wrong-shaped or all-zero tensor is an error that names it, because such a
draft loads, serves, and accepts nothing (pitfall 43). Embedding and head may be absent: they are the target's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3Config

from data_specs.draft import CONFIG, CONVENTION, DEFAULTS, REQUIRED, WEIGHTS
from data_specs.errors import UserError
from pipeline.drafts.base import FROZEN, Draft
from pipeline.drafts.registry import ARCHITECTURES

if TYPE_CHECKING:
    from pipeline.target import TargetTensors


class CheckpointError(UserError):
    """A folder that is no draft, or one that would not draft what it was trained to."""


def save(draft: Draft, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write ``draft`` into ``folder``. Trainable tensors are cast to ``dtype``; frozen ones keep their bits."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: value.detach().cpu().contiguous().to(value.dtype if name in FROZEN else dtype or value.dtype)
        for name, value in draft.state_dict().items()
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = draft.config.to_dict() | CONVENTION
    (folder / CONFIG).write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


def read_config(folder: Path) -> Qwen3Config:
    """The draft's config with the defaults of the native layout; errors name the field."""
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(f"{folder}: expected a draft folder with {CONFIG}, found none")
    values: dict[str, Any] = DEFAULTS | json.loads(path.read_text())
    for name in REQUIRED:
        if values.get(name) is None:
            raise CheckpointError(f"{path}: field {name} is missing")
    architecture = values["architectures"][0]
    if architecture not in ARCHITECTURES:
        raise CheckpointError(
            f"{path}: field architectures: expected one of {sorted(ARCHITECTURES)}, got {architecture}"
        )
    if values["markov_rank"] and values["markov_head_type"] != "vanilla":
        raise CheckpointError(
            f"{path}: field markov_head_type: expected vanilla, got {values['markov_head_type']}"
        )
    if not values["sample_from_anchor"]:
        raise CheckpointError(
            f"{path}: field sample_from_anchor: expected true (anchor-first), got false (1+N fill-in)"
        )
    if not 0 <= values["mask_token_id"] < values["vocab_size"]:
        rows = values["vocab_size"]
        raise CheckpointError(
            f"{path}: field mask_token_id: expected a row below {rows}, got {values['mask_token_id']}"
        )
    return Qwen3Config.from_dict(values)


def load(folder: Path, tensors: TargetTensors | None = None) -> Draft:
    """Read a draft; embedding and head come from ``tensors`` (the target's) where the folder has none."""
    config = read_config(folder)
    path = folder / WEIGHTS
    try:
        weights = load_file(path)
    except (FileNotFoundError, SafetensorError) as error:
        raise CheckpointError(f"{path}: expected a safetensors file: {error}") from None
    if tensors is not None:
        weights = {"embed_tokens.weight": tensors.embedding, "lm_head.weight": tensors.head} | weights
    assert config.architectures, "read_config refuses a folder without"
    draft = ARCHITECTURES[config.architectures[0]](config)
    check(path, weights, {name: tuple(value.shape) for name, value in draft.state_dict().items()})
    draft.load_state_dict(weights, assign=True)
    draft.freeze()
    return draft.eval()


def check(path: Path, weights: dict[str, Tensor], expected: dict[str, tuple[int, ...]]) -> None:
    """Names and shapes of ``weights`` against ``expected``; ``CheckpointError`` names the first difference."""
    for name in sorted(expected.keys() - weights.keys()):
        raise CheckpointError(f"{path}: tensor {name} {expected[name]} is missing")
    for name in sorted(weights.keys() - expected.keys()):
        raise CheckpointError(f"{path}: tensor {name} is not part of this draft")
    for name, value in weights.items():
        if tuple(value.shape) != expected[name]:
            raise CheckpointError(
                f"{path}: tensor {name}: expected shape {expected[name]}, got {tuple(value.shape)}"
            )
        if not name.endswith("bias") and not value.any():
            raise CheckpointError(f"{path}: tensor {name} is all zero")
