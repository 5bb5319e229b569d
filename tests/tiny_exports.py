"""The drafts that the tests of exports share: every algorithm, head, family and vocabulary."""

from __future__ import annotations

from pathlib import Path

import tiny
import torch

from pipeline.drafts import registry
from pipeline.drafts.folders import checkpoint
from pipeline.drafts.model import Model
from stages.export.source import DraftSource, read_source

IDS = torch.arange(5, 272, 3)
RANK = {"markov_rank": 64}
DRAFTS: dict[str, tuple[str, dict, tuple[int, ...]]] = {
    "dspark": ("dspark", RANK, (0, 2)),
    "dspark_rank_8": ("dspark", {}, (0, 2)),
    "dspark_gated": ("dspark", RANK | {"markov_head": "gated"}, (0, 2)),
    "dspark_rnn": ("dspark", RANK | {"markov_head": "rnn"}, (0, 2)),
    "dspark_learned_start": ("dspark", RANK | {"markov_head": "rnn", "learned_start": True}, (0, 2)),
    "dspark_reduced": ("dspark", RANK | {"ids": IDS}, (0, 2)),
    "dspark_window": ("dspark", RANK | {"sliding_window": 8}, (0, 2)),
    "dspark_fill_in": ("dspark", RANK | {"sample_from_anchor": False}, (0, 2)),
    "dspark_no_markov": ("dspark", {"markov_rank": 0}, (0, 2)),
    "dspark_gemma4": ("dspark", RANK | {"family": "gemma4"}, (0, 2)),
    "dspark_llama": ("dspark", RANK | {"family": "llama"}, (0, 2)),
    "dflash": ("dflash", {}, (0, 2)),
    "dflash_gemma4": ("dflash", {"family": "gemma4"}, (0, 2)),
    "dflash_reduced": ("dflash", {"ids": IDS}, (0, 2)),
    "dflash_fill_in": ("dflash", {"sample_from_anchor": False, "block_size": 8}, (0, 2)),
    "dflash_fill_in_reduced": ("dflash", {"sample_from_anchor": False, "block_size": 8, "ids": IDS}, (0, 2)),
    "dflash_fill_in_window": ("dflash", {"sample_from_anchor": False, "block_size": 8, "sliding_window": 9}, (0, 2)),
    "dflash_fill_in_gemma4": ("dflash", {"sample_from_anchor": False, "block_size": 8, "family": "gemma4"}, (0, 2)),
    "eagle3": ("eagle3", {}, (-1, 0, 1, 2, 3)),
    "eagle3_llama": ("eagle3", {"family": "llama"}, (0, 1, 2)),
    "eagle3_llama_reduced": ("eagle3", {"family": "llama", "ids": IDS}, (0, 1, 2)),
    "eagle3_llama_window": ("eagle3", {"family": "llama", "sliding_window": 8}, (0, 1, 2)),
    "mtp": ("mtp", {}, ()),
}  # fmt: skip


def make(name: str) -> Model:
    """The draft ``name`` with random weights; the norms' weights differ from one."""
    algorithm, changes, taps = DRAFTS[name]
    changes = dict(changes)
    ids = changes.pop("ids", None)
    torch.manual_seed(0)
    how = tiny.drafter(algorithm, **changes)
    target = tiny.target_config()
    config = registry.draft_config(how, target, 272, list(taps), 260, None if ids is None else len(ids))
    draft = registry.ALGORITHMS[algorithm](config, registry.FAMILIES[registry.family_of(how, target)])
    with torch.no_grad():
        for weight in draft.parameters():
            weight.normal_(std=0.3) if weight.dim() > 1 else weight.add_(0.1 * torch.randn_like(weight))
    if ids is not None:
        draft.load_state_dict(registry.head_tensors(draft, torch.randn(272, 32), ids), strict=False)
    return draft.eval()


def saved(name: str, folder: Path) -> tuple[Model, DraftSource]:
    """The draft ``name``, saved in ``folder``, and what an export reads from there."""
    draft = make(name)
    checkpoint.save(draft, folder)
    return draft, read_source(folder)
