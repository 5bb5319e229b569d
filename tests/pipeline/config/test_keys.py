"""An unknown key is an error however it is written, and the nearest key is named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from composing import by_hydra
from omegaconf import OmegaConf
from tiny_errors import refused

from pipeline.config import ConfigError, resolve

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "override,key,meant",
    [
        ("+train.lrr=1", "train.lrr", "train.lr"),
        ("++train.lrr=1", "train.lrr", "train.lr"),
        ("+foo.bar=1", "foo", None),
        ("++x=1", "x", None),
        ("+lr=1", "lr", "train.lr"),
        ("+drafter.lr=1", "drafter.lr", "train.lr"),
        ("+targets.name=x", "targets", "target"),
        ("+drafter.loss.ec=1", "drafter.loss.ec", "drafter.loss.ce"),
    ],
)
def test_an_added_key_is_refused(override: str, key: str, meant: str | None):
    with pytest.raises(ConfigError) as error:
        resolve(by_hydra(override))
    assert str(error.value).startswith(f"{key}: ")
    assert "?" not in str(error.value) if meant is None else f" {meant}?" in str(error.value)


@pytest.mark.parametrize(
    "override",
    [
        "+deepspeed.extra.zero_optimization.sub_group_size=1",
        "+capture.vllm.options.gpu_memory_utilization=0.9",
        "+evaluate.files.mine=null",
        "evaluate.files.mine=null",
        "+compare.drafters.mine=['drafter=mtp']",
    ],
)
def test_free_dicts_stay_free(override: str):
    assert resolve(by_hydra(override))


def test_a_key_in_an_element_is_refused():
    cfg = by_hydra("experiment=compare_drafters").copy()
    OmegaConf.update(cfg, "compare.figures.depth.latncy", True, force_add=True)
    with pytest.raises(ConfigError, match="^compare.figures.depth.latncy: "):
        resolve(cfg)


@pytest.mark.parametrize(
    "old,new",
    [
        ("answers.engine", "answers.source"),
        ("capture.engine", "capture.source"),
        ("profile", "evaluate.profile"),
    ],
)
def test_a_renamed_key_names_the_new_one(old: str, new: str):
    with refused(ConfigError, f"{old} ", new):
        resolve(by_hydra(f"+{old}=1"))


def run(*arguments: str) -> str:
    """The last line that ``python -m pipeline`` prints with ``arguments``, which it must refuse."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments, "stage=list"],
        check=False, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "arguments,said",
    [
        (["train.lrr=1"], "train.lrr: there is no such key; did you mean train.lr?"),
        (["profile=true"], "profile is now evaluate.profile"),
        (["train.lr=fast"], "draftline: error: train.lr: "),
        (["capture.vllm.options.dtype=half"], "+capture.vllm.options.dtype="),
        (
            ["data.sources=[{path: a.jsonl, limt: 1}]"],
            "did you mean data.sources[].limit?",
        ),
        (["--cfg", "job", "+train.lrr=1"], "train.lrr: there is no such key; did you mean train.lr?"),
        (["-m", "+train.lrr=1,2"], "train.lrr: there is no such key; did you mean train.lr?"),
    ],
)
def test_the_command_line_names_the_key(arguments: list[str], said: str, tmp_path: Path):
    assert said in run(*arguments, f"hydra.sweep.dir={tmp_path}", f"hydra.run.dir={tmp_path}")


def test_an_experiment_file_names_the_key(tmp_path: Path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "bad.yaml").write_text("# @package _global_\ntrain:\n  lrr: 1\n")
    said = run("experiment=bad", f"hydra.searchpath=[file://{tmp_path}]", f"hydra.run.dir={tmp_path}")
    assert "train.lrr: there is no such key; did you mean train.lr?" in said
