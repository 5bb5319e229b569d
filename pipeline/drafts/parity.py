"""Compare a draft with reference figures: ``python -m pipeline.drafts.parity FOLDER``.

FOLDER holds ``model.safetensors``, ``config.json`` (native layout), ``tensors.safetensors`` (inputs and expected
outputs), ``gradients.safetensors`` and ``expected.json``. Prints the largest difference of each quantity as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from pipeline.drafts import checkpoint
from pipeline.drafts.base import Batch, Blocks, LossWeights, Supervision, supervise


def inputs(tensors: dict[str, Tensor]) -> tuple[Batch, Blocks]:
    """Batch and blocks of a golden folder's ``tensors.safetensors``."""
    ids = tensors["input_ids"]
    batch = Batch(
        input_ids=ids,
        loss_mask=tensors["loss_mask"].bool(),
        lengths=torch.full((len(ids),), ids.shape[1]),
        hidden=tensors["target_hidden_states"],
        last_hidden=tensors["target_last_hidden_states"],
        samples=torch.arange(len(ids)),
    )
    return batch, Blocks(tensors["anchor_positions"], tensors["block_keep_mask"])


def compare(folder: Path, attention: str = "dense", chunk_slots: int = 128) -> dict[str, float]:
    """Largest difference of logits, confidences, labels and losses; of gradients relative to the tensor's norm."""
    tensors, expected = (
        load_file(folder / "tensors.safetensors"),
        json.loads((folder / "expected.json").read_text()),
    )
    draft = checkpoint.load(folder).float().train()
    draft.attention = attention
    batch, blocks = inputs(tensors)
    report = _forward_differences(draft, batch, blocks, tensors)
    weights = LossWeights(
        expected["weights"]["ce"], expected["weights"]["tv"], expected["weights"]["confidence"]
    )
    for gamma in (4.0, 7.0):
        draft.zero_grad()
        supervision = supervise(batch, blocks, draft.block_size, gamma)
        loss = draft.loss(batch, blocks, supervision, weights, chunk_slots).total / supervision.weights.sum()
        report[f"loss_gamma{gamma:.0f}"] = abs(loss.item() - expected["losses"][f"loss_gamma{gamma:.0f}"])
    loss.backward()
    return report | _gradient_differences(draft, folder)


def _forward_differences(draft, batch: Batch, blocks: Blocks, tensors: dict[str, Tensor]) -> dict[str, float]:
    supervision: Supervision = supervise(batch, blocks, draft.block_size, 7.0)
    rows = torch.arange(len(batch.input_ids))[:, None, None]
    positions = blocks.anchors[..., None] + torch.arange(draft.block_size)
    previous = batch.input_ids[rows, positions.clamp(max=batch.input_ids.shape[1] - 1)]
    with torch.no_grad():
        states = draft.block_states(batch, blocks)
        features = draft.features(previous)
        found = {"draft_logits": draft.logits(states, features)}
        if draft.confidence_head is not None:
            found["confidence_logits"] = draft.confidence(states, features)
    kept = blocks.keep[..., None].expand_as(supervision.mask) & (positions + 1 < batch.input_ids.shape[1])
    report = {name: (value - tensors[name])[kept].abs().max().item() for name, value in found.items()}
    report["eval_mask"] = float((supervision.mask != tensors["eval_mask"]).sum())
    labels = (supervision.labels - tensors["target_ids"])[supervision.mask]
    return report | {"target_ids": labels.abs().max().item()}


def _gradient_differences(draft: torch.nn.Module, folder: Path) -> dict[str, float]:
    expected = load_file(folder / "gradients.safetensors")
    found = {f"grad.{name}": p.grad for name, p in draft.named_parameters() if p.grad is not None}
    report = {}
    for name in sorted(expected.keys() | found.keys()):
        if name not in found or name not in expected:
            report[name] = float("inf")
            continue
        scale = expected[name].norm().clamp(min=1e-12)
        report[name] = ((found[name] - expected[name]).norm() / scale).item()
    return report


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m pipeline.drafts.parity FOLDER")
    print(json.dumps(compare(Path(sys.argv[1])), indent=1))
