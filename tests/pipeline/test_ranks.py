import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_errors import refused

from data_specs.errors import UserError
from pipeline import ranks

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name in ranks.NAMES or name.startswith("SLURM_"):
            monkeypatch.delenv(name)


def test_one_process_is_the_main_one() -> None:
    assert (ranks.rank(), ranks.world_size(), ranks.local_rank(), ranks.is_main()) == (0, 1, 0, True)


def test_torchrun_environment_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29500",
    }
    for name, value in (given | {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}).items():
        monkeypatch.setenv(name, value)
    ranks.adopt_environment()
    assert {name: os.environ[name] for name in ranks.NAMES} == given
    assert (ranks.rank(), ranks.world_size(), ranks.local_rank(), ranks.is_main()) == (3, 4, 1, False)


def test_half_an_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused(UserError, "RANK=1", "MASTER_ADDR", "MASTER_PORT"):
        ranks.adopt_environment()


SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "123456",
    "SLURM_JOB_NODELIST": "gpu[003-006,9],cpu1",
}


def test_slurm_task() -> None:
    assert ranks.slurm_environment(SLURM) == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "gpu003",
        "MASTER_PORT": "23456",
    }


@pytest.mark.parametrize(
    ("more", "address"),
    [
        ({}, "gpu003"),
        ({"SLURM_STEP_NODELIST": "gpu[005-006]"}, "gpu005"),
        ({"SLURM_JOB_NODELIST": ""}, "127.0.0.1"),
    ],
)
def test_rank_0_listens_on_the_step_s_first_host(more: dict[str, str], address: str) -> None:
    """Not on the host where srun was typed, which may be a login node."""
    variables = SLURM | {"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7"} | more
    assert ranks.slurm_environment(variables)["MASTER_ADDR"] == address


def test_the_deepspeed_launcher_s_argument_is_dropped() -> None:
    given = ["--local_rank=3", "stage=train", "--local-rank=0", "x=--local_rank=1", "--cfg", "job"]
    assert ranks.drop_launcher_arguments(given) == ["stage=train", "x=--local_rank=1", "--cfg", "job"]


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu[003-006,9],cpu1", "gpu003"), ("n1,n2", "n1"), ("a-b-7", "a-b-7"), ("x[1,3]", "x1")],
)
def test_first_host(nodes: str, first: str) -> None:
    assert ranks.first_host(nodes) == first


def test_slurm_is_adopted_in_a_step_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch script has SLURM_NTASKS too, but is one process: it would wait for ranks that never come."""
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    ranks.adopt_environment()
    assert ranks.world_size() == 1
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("MASTER_PORT", "29999")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"):
        monkeypatch.setenv(name, "to be undone")
        monkeypatch.delenv(name)
    ranks.adopt_environment()
    assert (ranks.rank(), ranks.world_size(), os.environ["MASTER_PORT"]) == (5, 8, "29999")


def test_wanted() -> None:
    assert ranks.wanted(3) == 3
    assert ranks.wanted(None) == max(1, ranks.visible_gpus())


def test_needs_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not ranks.needs_start(1)
    assert ranks.needs_start(2)
    monkeypatch.setenv(ranks.STARTED, "1")
    assert not ranks.needs_start(2)
    monkeypatch.delenv(ranks.STARTED)
    monkeypatch.setenv("RANK", "0")
    assert not ranks.needs_start(2)


def test_rendezvous_of_one_leaves_no_trace() -> None:
    with ranks.rendezvous():
        assert (ranks.rank(), ranks.world_size(), os.environ["MASTER_ADDR"]) == (0, 1, "127.0.0.1")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", int(os.environ["MASTER_PORT"])))
    assert not any(name in os.environ for name in ranks.NAMES)


# A package named `pipeline` that says who it is instead of training: what `start` runs.
CHILD = """
import os, signal, sys, time
me = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS")]
def say(*words):  # in one write: torchrun's children are unbuffered, and print's pieces would interleave
    os.write(1, (" ".join(words) + "\\n").encode())
say("child", *me, *sys.argv[1:])
if sys.argv[1:] == ["fail"] and os.environ["RANK"] == "1":
    sys.exit(7)
if sys.argv[1:] == ["wait"]:
    signal.signal(signal.SIGTERM, lambda *_: (say("saved"), sys.exit(143)))
    time.sleep(60)
"""
PARENT = """
import importlib.util, os, sys
os.environ.pop("OMP_NUM_THREADS", None)
spec = importlib.util.spec_from_file_location("real_ranks", {path!r})
ranks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ranks)
sys.exit(ranks.start(2, sys.argv[1:]))
"""


def launch(folder: Path, *argv: str) -> subprocess.Popen[str]:
    package = folder / "pipeline"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(CHILD)
    code = PARENT.format(path=str(REPOSITORY / "pipeline" / "ranks.py"))
    return subprocess.Popen(
        [sys.executable, "-c", code, *argv], cwd=folder, env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_start_runs_the_command_in_every_rank(tmp_path: Path) -> None:
    process = launch(tmp_path, "stage=train", "x='a b'")
    output, _ = process.communicate(timeout=60)
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert sorted(output.splitlines()) == [f"child {r} 2 {threads} stage=train x='a b'" for r in (0, 1)]
    assert process.returncode == 0


def test_start_returns_the_failed_rank_s_code(tmp_path: Path) -> None:
    process = launch(tmp_path, "fail")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 7
    assert "rank 1 ended with code 7" in errors


def test_start_passes_sigterm_on_and_waits(tmp_path: Path) -> None:
    process = launch(tmp_path, "wait")
    assert process.stdout is not None
    assert {process.stdout.readline().split()[1] for _ in range(2)} == {"0", "1"}
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert output.split() == ["saved", "saved"]
    assert process.returncode == 143
