"""A training that fails ends, whoever started it; ranks whose launcher was killed end too."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import tiny_cache

from pipeline.config import Config

# Out of memory in the first step, in every process that imports the trainer.
BROKEN = """
import importlib.abc, importlib.util, sys

class Broken(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "stages.train.trainer":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            def loss(self, *arguments):
                raise RuntimeError("out of memory (injected)")
            module.Trainer.loss = loss
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Broken())
"""
ROOT = Path(__file__).parents[3]


def started(config: Config, folder: Path, *more: str, broken: bool = False) -> subprocess.Popen[str]:
    """``python -m pipeline stage=train``, its output in ``folder``."""
    (folder / "sitecustomize.py").write_text(BROKEN if broken else "")
    environment = os.environ | {"PYTHONPATH": f"{folder}:{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pipeline", *tiny_cache.overrides(config), *more]
    with (folder / "log").open("w") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, text=True, cwd=ROOT)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_exception_in_a_step_ends_the_command(cached, tmp_path: Path, ranks: int) -> None:
    """The readers ignore SIGTERM, and the traceback kept them alive: the command hung until it was killed."""
    process = started(cached.config(workers=2), tmp_path, f"ranks={ranks}", broken=True)
    family = psutil.Process(process.pid)
    try:
        while "injected" not in (tmp_path / "log").read_text():
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        children = family.children(recursive=True)
        assert process.wait(timeout=20) == 1
        assert psutil.wait_procs(children, timeout=5)[1] == []
    finally:
        process.kill()


@pytest.mark.slow
def test_ranks_end_with_their_launcher(cached, tmp_path: Path) -> None:
    process = started(cached.config(steps=100_000, workers=0), tmp_path, "ranks=2")
    try:
        while not list(Path(cached.store.root).glob("draft/*/.partial-*/metrics.jsonl")):
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        ranks = psutil.Process(process.pid).children(recursive=True)
        assert len(ranks) >= 2
        process.send_signal(signal.SIGKILL)
        assert psutil.wait_procs(ranks, timeout=30)[1] == []
    finally:
        process.kill()
