"""The worker's own process with a stand-in for vLLM: what it says, what it asks of vLLM, and how it ends."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_capture_vllm import ended

from stages.cache.vllm_process import SCRIPT
from stages.cache.vllm_worker import worker

STATES = np.arange(12, dtype=np.float32).reshape(2, 3, 2)


class Asked:
    """A running worker whose pipes the test holds."""

    def __init__(self, root: Path, fault: str | None = None) -> None:
        self.folder, self.table = root / "exchange", root / "table.safetensors"
        self.folder.mkdir()
        save_file({"[1, 2]": STATES, "[1, 2] next": np.array([7])}, self.table)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        start = [sys.executable, str(SCRIPT), str(self.folder)]
        self.process = subprocess.Popen(start, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload]
        self.tell({"table": str(self.table), "fault": fault})

    def tell(self, message: dict[str, object]) -> None:
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, object]:
        return json.loads(self.process.stdout.readline())

    def batch(self, name: str, samples: list[list[int]]) -> None:
        (self.folder / name).write_text(json.dumps(samples))
        self.tell({"batch": name})


@pytest.fixture
def started(fake: None, tmp_path: Path) -> Iterator[list[Asked]]:
    """Workers that the test starts; they are gone when it is over."""
    made: list[Asked] = []
    yield made
    for one in made:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()


def test_a_conversation(started: list[Asked], tmp_path: Path) -> None:
    started.append(asked := Asked(tmp_path))
    assert asked.hear() == {"ready": True}
    asked.batch("0.json", [[1, 2], [1, 2]])
    said = asked.hear()
    assert said == {"files": ["1-0.safetensors", "1-1.safetensors"], "next": [7, 7]}
    assert load_file(asked.folder / "1-1.safetensors")["hidden_states"].tolist() == STATES.tolist()
    asked.tell({"end": True})
    out, errors = asked.process.communicate(timeout=20)
    assert (asked.process.returncode, out) == (0, "")
    assert "vLLM prints to standard output" in errors  # which carries nothing but answers
    assert asked.folder.is_dir()  # whoever started it takes it away


@pytest.mark.parametrize("cpu", [True, False])
def test_states_go_to_the_folder_by_a_connector_that_the_machine_can_run(
    started: list[Asked], tmp_path: Path, cpu: bool
) -> None:
    """vLLM's own needs CUDA."""
    platforms = tmp_path / "packages" / "vllm" / "platforms.py"
    platforms.write_text(f"class current_platform:\n    is_cpu = staticmethod(lambda: {cpu})\n")
    started.append(asked := Asked(tmp_path))
    assert asked.hear() == {"ready": True}
    transfer = json.loads(asked.table.with_suffix(".json").read_text())["kv_transfer_config"]
    here = {"kv_connector": "CpuHiddenStates", "kv_connector_module_path": "cpu_connector"}
    assert transfer == (here if cpu else {"kv_connector": "ExampleHiddenStatesConnector"}) | {
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(asked.folder)},
    }
    assert (SCRIPT.parent / "cpu_connector.py").is_file()


def test_the_worker_and_its_processes_end_with_a_stage_that_is_killed(
    started: list[Asked], tmp_path: Path
) -> None:
    """kill -9 closes the pipes and does nothing else."""
    started.append(asked := Asked(tmp_path, "hangs"))
    assert asked.hear() == {"ready": True}
    for number, samples in enumerate([[], [], [[1]]]):
        asked.batch(f"{number}.json", samples)
    while not (tmp_path / "child").exists():
        time.sleep(0.02)
    asked.process.stdin.close()
    assert asked.process.wait(10) == -9
    assert ended(int((tmp_path / "child").read_text()))
    assert not asked.folder.exists()


def test_it_ends_with_the_first_of_vllms_processes(started: list[Asked], tmp_path: Path) -> None:
    started.append(asked := Asked(tmp_path, "engine dies"))
    assert asked.hear() == {"ready": True}
    for number in range(3):
        asked.batch(f"{number}.json", [[1, 2]])
    assert asked.process.wait(20) == 1
    assert "a process of vLLM has ended" in asked.process.stderr.read()


def test_a_file_is_named_when_vllm_has_let_go_of_it(tmp_path: Path) -> None:
    """vLLM answers before it has written."""
    path, lock = tmp_path / "a.safetensors", tmp_path / "a.safetensors.lock"
    assert worker._whole(path) == "a.safetensors"  # without a lock at once
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def write() -> None:
            path.write_text("whole")
            fcntl.flock(held, fcntl.LOCK_UN)

        later = threading.Timer(0.2, write)
        later.start()
        assert worker._whole(path) == "a.safetensors"
        assert path.read_text() == "whole" and not lock.exists()
        later.join()
