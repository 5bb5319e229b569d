"""This process's place among the processes of a run, and how those processes are started.

The rest of the program reads the place from RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, which torchrun
and the deepspeed launcher set. Slurm's variables are translated into these. Without a launcher, ``start`` runs the
command again in N processes, with torchrun's library.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from data_specs.errors import UserError

PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
STARTED = "DRAFTLINE_STARTED"  # in the processes that ``start`` has started: its process number
SHUTDOWN_SECONDS = 60  # a rank that is asked to end first finishes its step and saves a checkpoint
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
LOCAL_RANK_ARGUMENT = re.compile(r"--local[_-]rank=\d+")


def rank() -> int:
    """This process's number among all, 0 in a run of one."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many processes the run has."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """This process's number on its machine, which is also the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main() -> bool:
    """True in the process that prints, logs and commits."""
    return rank() == 0


def visible_gpus() -> int:
    """GPUs that this process may use (CUDA_VISIBLE_DEVICES respected)."""
    import torch

    return torch.cuda.device_count()


def wanted(ranks: int | None) -> int:
    """How many processes to run: ``ranks`` if given, else one per visible GPU, and at least 1."""
    return max(1, visible_gpus()) if ranks is None else ranks


def adopt_environment() -> None:
    """Translate the launcher's variables into torchrun's names; without a launcher nothing changes.

    A process that ``srun`` started as one of several tasks takes its place from Slurm's variables. Only such a process
    has SLURM_STEP_ID; the batch script does not. Raises ``UserError`` naming the missing variables if only some of
    torchrun's are set.
    """
    if "RANK" in os.environ:
        os.environ.setdefault("LOCAL_RANK", "0")
        missing = [name for name in NAMES if name not in os.environ]
        if missing:
            raise UserError(
                f"RANK={os.environ['RANK']}: expected {', '.join(missing)} as well (start with torchrun, or unset RANK)"
            )
    elif "SLURM_STEP_ID" in os.environ and int(os.environ.get("SLURM_NTASKS", "1")) > 1:
        os.environ.update(
            slurm_environment(os.environ) | dict(_given(os.environ, "MASTER_ADDR", "MASTER_PORT"))
        )


def slurm_environment(variables: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """torchrun's variables for a Slurm task with these ``variables``. The port follows from the job's number.

    Rank 0 is on the first host of the step. SLURM_LAUNCH_NODE_IPADDR is not used, because it is the host on which srun
    was typed, which may be a login node.
    """
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST")
    return {
        "RANK": variables["SLURM_PROCID"],
        "WORLD_SIZE": variables["SLURM_NTASKS"],
        "LOCAL_RANK": variables.get("SLURM_LOCALID", "0"),
        "MASTER_ADDR": first_host(nodes) if nodes else "127.0.0.1",
        "MASTER_PORT": str(20000 + int(variables.get("SLURM_JOB_ID", "0")) % 20000),
    }


def first_host(nodes: str) -> str:
    """The first host of Slurm's list: ``gpu[003-006,9],cpu1`` -> ``gpu003``."""
    match = re.match(r"([^,\[]+)(?:\[(\w+))?", nodes)
    if match is None:
        raise UserError(f"Slurm's node list {nodes!r}: expected a list of hosts")
    return match[1] + (match[2] or "")


def drop_launcher_arguments(argv: list[str]) -> list[str]:
    """``argv`` without the ``--local_rank=N`` of the deepspeed launcher, which sets LOCAL_RANK as well."""
    return [item for item in argv if not LOCAL_RANK_ARGUMENT.fullmatch(item)]


def needs_start(ranks: int | None) -> bool:
    """True if more than one process is wanted, and neither a launcher nor ``start`` has started them yet."""
    return "RANK" not in os.environ and STARTED not in os.environ and wanted(ranks) > 1


def start(ranks: int, argv: Sequence[str]) -> int:
    """Run ``python -m pipeline <argv>`` in ``ranks`` processes on this machine; returns the exit code.

    When one process fails, the others get SIGTERM, and SIGKILL after a minute; the failed one's exit code is returned
    (128 + n for signal n). A signal to this process is passed on to all of them.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The processes inherit these. Two processes with two spinning threads each are 30 times slower than with one.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // ranks)))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ[STARTED] = str(os.getpid())
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=ranks, run_id=uuid.uuid4().hex, rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0", local_addr="127.0.0.1", max_restarts=0,
        shutdown_timeout=SHUTDOWN_SECONDS,
    )  # fmt: skip
    try:
        elastic_launch(config, sys.executable)("-m", "pipeline", *argv)
    except ChildFailedError as error:
        number, failure = error.get_first_failure()
        print(
            f"rank {number} ended with code {failure.exitcode}; the other ranks were stopped", file=sys.stderr
        )
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    except SignalException as error:
        return 128 + error.sigval.value
    finally:
        del os.environ[STARTED]
    return 0


def end_with_launcher() -> None:
    """Have this rank get SIGTERM when the process that started it dies, even by kill -9 (only on Linux)."""
    if STARTED in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(os.environ[STARTED]):  # it died before prctl
            os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def rendezvous() -> Iterator[None]:
    """Without a launcher, set the variables of ``torch.distributed``: one process, on a free port."""
    if "RANK" in os.environ:
        yield
        return
    alone = dict(zip(NAMES, ("0", "1", "0", "127.0.0.1", free_port()), strict=True))
    before = dict(_given(os.environ, *NAMES))
    os.environ.update(alone)
    try:
        yield
    finally:
        for name in NAMES:
            del os.environ[name]
        os.environ.update(before)


def free_port() -> str:
    """A TCP port on 127.0.0.1 on which no process listens at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _given(variables: os._Environ[str] | dict[str, str], *names: str) -> Iterator[tuple[str, str]]:
    return ((name, variables[name]) for name in names if name in variables)
