import os
from pathlib import Path

import pytest
from shell import LAUNCH, REPOSITORY, check_script, fake, run

SCRIPT = LAUNCH / "slurm.sbatch"


def test_the_script() -> None:
    check_script(SCRIPT)


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


def test_it_starts_one_torchrun_a_node(tmp_path: Path) -> None:
    done = run(SCRIPT, "stage=train", "x=a b", **slurm(tmp_path, 'printf "%s\\n" "$@"'))
    words = done.stdout.splitlines()
    assert words[1:4] == ["py", "-m", "torch.distributed.run"]
    assert {"--nnodes=2", "--nproc-per-node=8", "--rdzv-endpoint=node1:20077", "--rdzv-id=77-0"} <= set(words)
    assert words[-4:] == ["--module", "pipeline", "stage=train", "x=a b"]
    assert done.returncode == 0


@pytest.mark.parametrize(("signal", "requeued"), [("USR1", True), ("TERM", False)])
def test_it_waits_for_the_checkpoint_and_requeues(tmp_path: Path, signal: str, requeued: bool) -> None:
    """USR1 (time limit) lets the ranks save, then requeues; TERM (cancelled, preempted) only saves."""
    save = 'trap "sleep 0.3; echo saved; exit 143" TERM'
    srun = f"{save}\nkill -{signal} $PPID\nfor _ in $(seq 100); do sleep 0.1; done"
    done = run(SCRIPT, "stage=train", **slurm(tmp_path, srun))
    assert done.stdout.splitlines() == ["saved"] + ["scontrol requeue 77"] * requeued
    assert done.returncode == 143


def test_it_does_not_requeue_a_failed_run(tmp_path: Path) -> None:
    done = run(SCRIPT, **slurm(tmp_path, "exit 3"))
    assert (done.returncode, done.stdout) == (3, "")
