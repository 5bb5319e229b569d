"""Two ranks = one rank (pitfalls 29, 30): uneven batches, and one rank with none in every step."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_cache
import torch
from safetensors.torch import load_file

from pipeline.store.artifacts import Artifact, Store
from stages.train import checkpoints
from stages.train.batches import Recipe, Samples, Sharing, StepShares
from stages.train.record import read_lines

# Three sequences a step, one a forward pass: of two ranks, the second has a filler in every second pass.
CHANGES = {
    "steps": 5,
    "global_batch": 3,
    "micro_batch": 1,
    "lr": 1e-2,
    "evaluate_every": 2,
    "checkpoint_every": 2,
}


def copy_of(made_cache: Path, tmp_path: Path, name: str) -> Path:
    shutil.copytree(made_cache, tmp_path / name)
    return tmp_path / name


def run(
    target: Path, root: Path, count: int, stage: int, algorithm: str = "dspark", **drafter: object
) -> Artifact:
    config = tiny_cache.train_config(target, root, algorithm, **CHANGES)
    config.deepspeed.stage = stage
    config.drafter = dataclasses.replace(config.drafter, **drafter)
    processes = tiny_cache.ranks_of(config, count)
    assert [process.wait() for process in processes] == [0] * count
    return Store(root).resolve("draft", f"tiny_{algorithm}")


def check_equal(one: Artifact, two: Artifact) -> None:
    figures = {"loss", "ce", "l1", "confidence", "weight", "accepted_length", "lr", "samples", "step", "kind"}
    for a, b in zip(*(read_lines(x.path / "metrics.jsonl") for x in (one, two)), strict=True):
        for name in figures & a.keys():
            expected = pytest.approx(a[name], abs=1e-5) if isinstance(a[name], float) else a[name]
            assert b[name] == expected, (a["step"], name)
        if a["kind"] == "train":
            assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-5)
    assert two.manifest.counts["trainable"] == one.manifest.counts["trainable"] > 0
    mine, theirs = (load_file(x.path / "last/model.safetensors") for x in (one, two))
    for name, value in mine.items():
        # Adam divides by the root of tiny gradients: the sums' last bits show in weights that hardly move.
        assert torch.allclose(value, theirs[name], atol=1e-4), name


SAMPLED = {"confidence_label": "sampled"}  # the coins are the sample's, not the rank's


@pytest.mark.parametrize(
    "algorithm,stage,drafter",
    [
        ("dspark", 0, SAMPLED), ("eagle3", 3, {}),
        *(pytest.param(name, 0, {}, marks=pytest.mark.slow) for name in ("dflash", "mtp")),
        *(pytest.param("dspark", stage, {}, marks=pytest.mark.slow) for stage in (1, 2, 3)),
    ],
)  # fmt: skip
def test_two_ranks_train_what_one_does(
    made_cache: Path, target_folder: Path, tmp_path: Path, algorithm: str, stage: int, drafter: dict
) -> None:
    samples = Samples(made_cache / "cache/tiny_chat/v0", "train", Recipe(0, 4, 3, 3.0))
    shares = StepShares(samples, Sharing(0, 3, 1, 2), rank=1).shares(0)
    assert [len(share) for share in shares] == [1, 0]
    roots = [copy_of(made_cache, tmp_path, name) for name in ("one", "two")]
    one, two = (run(target_folder, roots[n - 1], n, stage, algorithm, **drafter) for n in (1, 2))
    check_equal(one, two)


def test_a_signal_to_one_rank_stops_both_at_the_same_step(cached) -> None:
    config = cached.config(**CHANGES | {"steps": 500, "evaluate_every": 1000, "checkpoint_every": 1000})
    processes = tiny_cache.ranks_of(config, 2)
    deadline = time.monotonic() + 60
    while (
        not list(cached.store.root.glob("draft/*/.partial-*/metrics.jsonl")) and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    os.kill(processes[1].pid, signal.SIGTERM)
    assert [process.wait() for process in processes] == [143, 143]
    (partial,) = cached.store.root.glob("draft/*/.partial-*")
    saved = checkpoints.newest(partial / "run" / "checkpoints")
    assert saved is not None
    assert (saved.layout.world_size, saved.step) == (2, len(read_lines(partial / "metrics.jsonl")))


@pytest.mark.slow
def test_the_command_starts_its_ranks(cached, made_cache: Path, target_folder: Path, tmp_path: Path) -> None:
    """``ranks=2`` on the command line, the whole way; then it says that nothing is left to do."""
    config = cached.config(**CHANGES)
    command = [sys.executable, "-m", "pipeline", *tiny_cache.overrides(config), "ranks=2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    one = run(target_folder, copy_of(made_cache, tmp_path, "one"), 1, stage=0)
    check_equal(one, cached.store.resolve("draft", "tiny_dspark"))
    again = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert again.stdout.count("Reusing the draft") == 1
