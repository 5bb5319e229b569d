"""Writes a run's draft folders, and checks that frozen tensors were not trained."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch import Tensor

from data_specs.draft import WEIGHTS
from data_specs.files import rename_synced
from pipeline.drafts.base import FROZEN, Draft
from pipeline.drafts.folders import checkpoint
from pipeline.target.tensors import TargetTensors


def save_draft(draft: Draft, folder: Path, dtype: torch.dtype) -> None:
    """Write ``draft`` into ``folder``. At any moment the folder holds the old draft, nothing, or the new draft."""
    partial = folder.with_name(f".partial-{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    checkpoint.save(draft, partial, dtype)
    shutil.rmtree(folder, ignore_errors=True)
    rename_synced(partial, folder)


def check_frozen(folder: Path, tensors: TargetTensors) -> None:
    """Raise ``RuntimeError`` unless embedding and head in ``folder`` have the target's bits (pitfall 25)."""
    found = checkpoint.read_tensors(folder)
    ids = checkpoint.draft_ids(folder / WEIGHTS, found, len(tensors.embedding))
    head = tensors.head if ids is None else tensors.head[ids]
    for name, expected in zip(FROZEN, (tensors.embedding, head), strict=True):
        if name in found and not same_bits(found[name], expected):
            raise RuntimeError(f"{folder / WEIGHTS}: training changed {name}, which is the target's")


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether type, shape and all bits are equal (NaN equals NaN, 0 differs from -0)."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
