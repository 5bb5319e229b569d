"""A study of the tiny target: its draft, its calibration, its config."""

import json
from pathlib import Path

import tiny
import torch

from data_specs.calibration import Calibration, draft_contents
from pipeline.config import Config, EvaluateConfig, StudyConfig, TrackingConfig
from pipeline.drafts.folders.checkpoint import save
from pipeline.drafts.registry import build
from pipeline.target.files import identity
from pipeline.target.tensors import load_tensors

TABLE = {
    "name": "box", "machine": "a box", "model": "tiny", "source": "model", "note": "not measured", "context": 0,
    "position_seconds": 1e-6, "draft": [{"requests": 1, "seconds": 1e-3}, {"requests": 4, "seconds": 2e-3}],
    "points": [{"tokens": 1, "steps_per_second": 100}, {"tokens": 16, "steps_per_second": 25}],
}  # fmt: skip


def draft_in(folder: Path, target: Path, **changes: object) -> Path:
    """Save a random DSpark draft of three tokens a block for ``target``."""
    torch.manual_seed(1)
    drafter = tiny.drafter(**({"block_size": 3, "depth": 1, "markov_rank": 4} | changes))
    save(build(drafter, load_tensors(tiny.located(target)), [0, 2], mask_token_id=259).eval(), folder)
    return folder


def calibration_of(draft: Path, target: Path, temperatures: list[float]) -> Calibration:
    """A calibration of the draft in ``draft`` for greedy answers of ``target``."""
    return Calibration(
        draft=draft_contents(draft), target=identity(target), sampler={"temperature": 0.0}, dtype="bfloat16",
        thinking=None, data="d", made_with="m", keys=["k"], rounds=1, temperatures=temperatures, before=[], after=[],
    )  # fmt: skip


def config_of(target: Path, root: Path) -> Config:
    """Three policies at two concurrencies on three prompts of gsm8k, and the simulated machine ``TABLE``."""
    prompts, table = root / "math.jsonl", root / "box.json"
    prompts.write_text("".join(json.dumps({"question": f"{i} and {i}?"}) + "\n" for i in range(3)))
    table.write_text(json.dumps(TABLE))
    return Config(
        target=tiny.located(target),
        evaluate=EvaluateConfig(benchmarks=["gsm8k"], files={"gsm8k": str(prompts)}),
        study=StudyConfig(
            policies=["plain", "fixed_1", "algorithm_1"], calibrated=False, max_new_tokens=6, concurrencies=[1, 2],
            requests_per_slot=1, least_requests=3, timing_tokens=8, sps=[str(table)], simulated_concurrencies=[1, 4],
            simulated_prefill_tokens=16, arrivals=[0.5],
        ),
        tracking=TrackingConfig(mode="none"), artifacts=str(root / "artifacts"),
    )  # fmt: skip
