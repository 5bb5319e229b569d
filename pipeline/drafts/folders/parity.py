"""Compare a draft with reference figures: ``python -m pipeline.drafts.folders.parity FOLDER``.

FOLDER holds ``model.safetensors`` and ``config.json`` (native layout), ``tensors.safetensors`` (inputs and expected
outputs), ``expected.json`` (losses) and, if the reference has gradients, ``gradients.safetensors``. The command prints
the largest difference of each quantity as JSON. Differences of gradients are relative to the norm of the gradient.

Block drafters: ``anchor_positions``, ``block_keep_mask`` -> ``draft_logits`` [B, A, G, V], ``confidence_logits``,
``target_ids``, ``eval_mask``; losses ``loss_gamma<decay>`` with the position weight exp(-(k-1)/decay). Chains:
``draft_logits_step<k>`` [B, S, V] at every position; ``loss`` is a soft cross-entropy, a mean over B*S in each step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TypedDict

import torch
from safetensors.torch import load_file
from torch import Tensor

from data_specs.manifest import read_json
from pipeline.drafts.base import Batch, Blocks, LossWeights, Supervision, supervise
from pipeline.drafts.dspark import DSpark
from pipeline.drafts.folders import checkpoint
from pipeline.drafts.model import Model

Tensors = dict[str, Tensor]


class Expected(TypedDict, total=False):
    """``expected.json``: the first three are a block drafter's, the last three a chain's."""

    losses: dict[str, float]
    weights: dict[str, float]  # of the terms of the losses
    gradients_of: str  # the loss that gradients.safetensors belongs to
    ttt_length: int
    step_loss_decay: float
    loss: float


def inputs(tensors: Tensors) -> Batch:
    """The batch in a golden folder's ``tensors.safetensors``."""
    ids = tensors["input_ids"]
    return Batch(
        input_ids=ids,
        loss_mask=tensors["loss_mask"].bool(),
        lengths=tensors.get("attention_mask", torch.ones_like(ids)).sum(1),
        hidden=tensors["target_hidden_states"],
        last_hidden=tensors["target_last_hidden_states"],
        samples=torch.arange(len(ids)),
    )


def compare(folder: Path, attention: str = "dense", chunk_slots: int = 128) -> dict[str, float]:
    """The largest difference of logits, confidences, labels and losses, and of gradients relative to their norm."""
    tensors, expected = load_file(folder / "tensors.safetensors"), read_json(folder / "expected.json")
    draft, batch = checkpoint.load(folder).float().train(), inputs(tensors)
    draft.attention = attention
    with torch.no_grad():
        if "anchor_positions" not in tensors:
            return _chain(draft, batch, tensors, expected, chunk_slots)
        assert isinstance(draft, DSpark), "only block drafters have anchors"
        blocks = Blocks(tensors["anchor_positions"], tensors["block_keep_mask"].bool())
        report = _block_outputs(draft, batch, blocks, tensors)
    losses, gradients = _block_losses(draft, batch, blocks, expected, chunk_slots)
    return report | losses | _gradient_differences(gradients, folder)


def _block_outputs(draft: DSpark, batch: Batch, blocks: Blocks, tensors: Tensors) -> dict[str, float]:
    supervision = supervise(batch, blocks, draft.max_drafts, 7.0)
    states = draft.block_states(batch, blocks)
    embedded, features = draft.head_inputs(batch, blocks, states)
    found = {"draft_logits": draft.logits(states)}
    if features is not None and draft.markov_head is not None:
        found["draft_logits"] = found["draft_logits"] + draft.markov_head.bias(features)
    if draft.confidence_head is not None:
        found["confidence_logits"] = draft.confidence(states, embedded)
    ends = blocks.anchors[..., None] + 1 + torch.arange(draft.max_drafts)
    kept = blocks.keep[..., None] & (ends < batch.input_ids.shape[1])
    expected = {name: _drafting(value, draft) for name, value in tensors.items() if value.dim() > 2}
    report = {n: (v - expected[n])[kept].abs().max().item() for n, v in found.items() if n in expected}
    if "eval_mask" in expected:
        report["eval_mask"] = float((supervision.mask != expected["eval_mask"].bool()).sum())
    if "target_ids" in expected:
        wrong = (supervision.labels - expected["target_ids"])[supervision.mask]
        report["target_ids"] = wrong.abs().max().item()
    return report


def _drafting(value: Tensor, draft: DSpark) -> Tensor:
    """The slots that draft, from a reference [B, A, T, ..] that may hold all slots of a block."""
    return value[:, :, draft.first :] if value.shape[2] == draft.config.block_size else value


def _block_losses(
    draft: DSpark, batch: Batch, blocks: Blocks, expected: Expected, chunk_slots: int
) -> tuple[dict[str, float], Tensors]:
    """Differences of the losses, and the gradients of the loss for which the reference has gradients."""
    given = expected.get("weights", {})
    weights = LossWeights(given.get("ce", 0.0), given.get("tv", 0.0), given.get("confidence", 0.0))
    report: dict[str, float] = {}
    gradients: Tensors = {}
    for name, value in expected["losses"].items():
        draft.zero_grad()
        supervision = supervise(batch, blocks, draft.max_drafts, float(name.removeprefix("loss_gamma")))
        loss = draft.loss(batch, blocks, supervision, weights, chunk_slots).total / supervision.weights.sum()
        report[name] = abs(loss.item() - value)
        if name == expected.get("gradients_of", name):
            loss.backward()
            found = {n: p.grad for n, p in draft.named_parameters() if p.grad is not None}
            gradients = {f"grad.{name}": gradient.clone() for name, gradient in found.items()}
    return report, gradients


def _chain(
    draft: Model, batch: Batch, tensors: Tensors, expected: Expected, chunk_slots: int
) -> dict[str, float]:
    """Differences of a chain: position t of the reference is the block whose anchor is the token at t+1."""
    count, length = batch.input_ids.shape
    blocks = Blocks(torch.arange(1, length).repeat(count, 1), torch.ones(count, length - 1, dtype=torch.bool))
    logits = draft.logits(draft.block_states(batch, blocks))  # [B, S-1, G, V]
    supervision = _chain_supervision(batch, blocks, expected["ttt_length"], expected["step_loss_decay"])
    report = {}
    inside = blocks.anchors[..., None] + torch.arange(expected["ttt_length"]) < batch.lengths[:, None, None]
    for k in range(expected["ttt_length"]):  # beyond a sequence's end the reference reads padding
        difference = logits[:, :, k] - tensors[f"draft_logits_step{k}"][:, : length - 1]
        report[f"draft_logits_step{k}"] = difference[inside[..., k]].abs().max().item()
    loss = draft.loss(batch, blocks, supervision, LossWeights(0.0, 0.0, 0.0, soft=1.0), chunk_slots).total
    return report | {"loss": abs(loss.item() / (count * length) - expected["loss"])}


def _chain_supervision(batch: Batch, blocks: Blocks, steps: int, decay: float) -> Supervision:
    """The reference's mask: step k at position t counts if t+k is an answer token and t+1+k exists.

    Training here requires that the label, t+2+k, is an answer token (pitfall 1). Both compare the same distributions.
    """
    k = torch.arange(steps)
    before = blocks.anchors[..., None] - 1 + k  # t+k
    rows = torch.arange(len(batch.lengths))[:, None, None]
    last = batch.input_ids.shape[1] - 1
    mask = batch.loss_mask[rows, before.clamp(max=last)] & (before + 1 < batch.lengths[:, None, None])
    return Supervision(torch.zeros_like(before), mask, decay ** k.float() * mask)


def _gradient_differences(found: Tensors, folder: Path) -> dict[str, float]:
    """Differences of gradients relative to their norm; infinite if only one side has the gradient."""
    if not (folder / "gradients.safetensors").is_file():
        return {}
    expected = load_file(folder / "gradients.safetensors")
    report = dict.fromkeys(sorted(expected.keys() ^ found.keys()), float("inf"))
    for name in sorted(expected.keys() & found.keys()):
        scale = expected[name].norm().clamp(min=1e-12)
        report[name] = ((found[name] - expected[name]).norm() / scale).item()
    return report


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m pipeline.drafts.folders.parity FOLDER")
    print(json.dumps(compare(Path(sys.argv[1])), indent=1))
