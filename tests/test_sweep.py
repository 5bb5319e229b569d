"""A Hydra sweep over the drafters on a tiny target, by the command that a user types."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.store.artifacts import Store

ROOT = Path(__file__).parents[1]
DRAFTERS = ("dspark", "dflash", "eagle3", "mtp")


@pytest.mark.slow
def test_every_drafter_goes_through_the_whole_chain(tmp_path: Path, target_folder: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Count to {n}."}) + "\n" for n in range(4)))
    command = [
        sys.executable, "-m", "pipeline", "-m", "stage=all", f"drafter={','.join(DRAFTERS)}",
        f"artifacts={tmp_path / 'artifacts'}", f"hydra.sweep.dir={tmp_path / 'out'}",
        "target=hf", "target.name=tiny", f"target.path={target_folder}", "target.dtype=float32", "target.num_taps=3",
        "data=local", f"data.sources=[{{path: {prompts}}}]", "data.heldout=0", "answers.max_new_tokens=16",
        "train.epochs=null", "train.steps=2", "train.global_batch=2", "train.micro_batch=2", "train.anchors=4",
        "train.dtype=fp32", "train.workers=0", "deepspeed=zero0", "tracking=none",
        "evaluate.benchmarks=[alpaca]", f"evaluate.files.alpaca={prompts}", "evaluate.max_new_tokens=12",
        "evaluate.calibrate=false",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Reusing the target cache") == 3, "one cache trains all of them"
    store = Store(tmp_path / "artifacts")
    for name in DRAFTERS:
        found = store.resolve("evaluation", f"tiny_{name}")
        summary = json.loads((found.path / "summary.json").read_text())
        metrics = summary["benchmarks"]["alpaca"]["metrics"]
        assert metrics["same_answers"]["value"] == 1, "greedy output is the target's own"
        assert metrics["accepted_length"]["value"] >= 1
