"""An evaluation of the tiny target: its draft, its prompts and its config."""

import json
from pathlib import Path

import tiny
import torch

from pipeline.config import Config, EvaluateConfig, TrackingConfig
from pipeline.drafts.folders.checkpoint import save
from pipeline.drafts.registry import build
from pipeline.target.tensors import load_tensors

MATH = [f"How much is {i} and {i}?" for i in range(5)]
CHAT = [["Hello there.", "Tell me more."], ["What is rain?"]]


def draft_in(folder: Path, target: Path) -> Path:
    """Save a random DSpark draft for ``target`` in the native layout."""
    torch.manual_seed(1)
    drafter = tiny.drafter(block_size=4, depth=1)
    save(build(drafter, load_tensors(tiny.located(target)), [0, 2], mask_token_id=259).eval(), folder)
    return folder


def config_of(target: Path, root: Path) -> Config:
    """Five prompts of gsm8k and two dialogues of mt_bench, from files in ``root``."""
    files = {"gsm8k": root / "math.jsonl", "mt_bench": root / "chat.jsonl"}
    files["gsm8k"].write_text("".join(json.dumps({"question": q}) + "\n" for q in MATH))
    files["mt_bench"].write_text("".join(json.dumps({"turns": t}) + "\n" for t in CHAT))
    evaluate = EvaluateConfig(
        benchmarks=["gsm8k", "mt_bench"], files={k: str(v) for k, v in files.items()},
        max_new_tokens=12, bootstrap=50, chunk_prompts=2, calibrate=False,
    )  # fmt: skip
    return Config(
        target=tiny.located(target), evaluate=evaluate, tracking=TrackingConfig(mode="none"),
        artifacts=str(root / "artifacts"),
    )  # fmt: skip
