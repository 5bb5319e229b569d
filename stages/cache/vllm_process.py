"""Runs vLLM's worker as a separate process: starts it, exchanges JSON lines, notices when it ends or hangs, ends it.

vLLM needs other packages than draftline, so it has its own environment (``capture.vllm.python``). The protocol is
documented in vllm_worker/worker.py; token ids and states go through files in a folder.
"""

from __future__ import annotations

import json
import os
import queue
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from data_specs.errors import UserError
from pipeline import ranks
from pipeline.config import ConfigError, VllmConfig
from pipeline.store.lease import Lease

SCRIPT = Path(__file__).parent / "vllm_worker" / "worker.py"
LOG = "worker.log"
LAST_LINES, MOST_ERRORS = 12, 3  # how much of the log an error shows
ERROR = re.compile(r"\b[\w.]*(?:Error|Exception): .+")
LOOK_SECONDS = 0.5  # between two checks that the process still runs
END_SECONDS = 60.0  # that vLLM gets to release its resources
# Does not import vLLM, because that takes half a minute, and some builds have another package name.
VERSION = """
import importlib.util, pathlib, runpy, sys
found = importlib.util.find_spec("vllm")
if found is None:
    sys.exit("the package vllm is missing")
print(runpy.run_path(str(pathlib.Path(found.submodule_search_locations[0]) / "_version.py"))["__version__"])
"""


class WorkerError(UserError):
    """vLLM ended, hung or broke the protocol; the message names its log and quotes its errors and last lines."""


def vllm_version(config: VllmConfig) -> str:
    """The version of vLLM in the environment of ``config.python``; ``ConfigError`` if vLLM is not there."""
    python = config.python or sys.executable
    try:
        done = subprocess.run(
            [python, "-c", VERSION], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"capture.vllm.python={python}: {error}") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise ConfigError(f"capture.vllm.python={python}: expected a Python that has vLLM: {said}")
    return done.stdout.strip()


class Worker:
    """The running worker; ``started`` makes one."""

    def __init__(self, config: VllmConfig, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.log, self.timeout = folder, folder / LOG, config.timeout
        command = [config.python or sys.executable, str(SCRIPT), str(folder)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,  # so that one signal ends the whole group
            )
        self._said: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def tell(self, message: dict[str, Any]) -> None:
        """Send one line; raises ``WorkerError`` if the worker has ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def hear(self) -> dict[str, Any]:
        """The next line; raises ``WorkerError`` if the worker ends, is silent too long, or sends no JSON object."""
        deadline = time.monotonic() + self.timeout
        while True:
            is_gone = (
                self.process.poll() is not None
            )  # asked before reading, so that its last lines are still read
            try:
                return self._object(self._said.get(timeout=LOOK_SECONDS))
            except queue.Empty:
                if is_gone:
                    raise self._ended() from None
            if time.monotonic() > deadline:
                raise self._error(f"was silent for {self.timeout:g} s (capture.vllm.timeout)")

    def end(self) -> None:
        """Let vLLM end by itself, so that it releases its resources; call ``kill`` afterwards in any case."""
        with suppress(WorkerError, subprocess.TimeoutExpired):  # all its answers have arrived
            self.tell({"end": True})
            self.process.wait(END_SECONDS)

    def kill(self) -> None:
        """End the worker and all processes that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(line)

    def _object(self, line: str) -> dict[str, Any]:
        try:
            said = json.loads(line)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise self._error(f"expected a JSON object, got {line[:200]!r}")
        return said

    def _ended(self) -> WorkerError:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(LOOK_SECONDS)
        return self._error(f"ended with exit status {self.process.returncode}")

    def _error(self, text: str) -> WorkerError:
        log = self.log.read_text(errors="replace")
        # The root cause, in a process of vLLM, is logged above the traceback of the process that waited for it.
        errors = list(dict.fromkeys(ERROR.findall(log)))[:MOST_ERRORS]
        parts = [
            ("First errors in the log:", errors),
            ("Last lines of the log:", log.splitlines()[-LAST_LINES:]),
        ]
        shown = [line for title, lines in parts if lines for line in (title, *lines)]
        return WorkerError("\n".join([f"vLLM {text}; its log is {self.log}.", *shown]))


@contextmanager
def started(config: VllmConfig, beside: Path, environment: dict[str, str]) -> Iterator[Worker]:
    """A worker in its own folder beside ``beside``; the folder is removed, but a failed worker's log is kept."""
    _remove_orphans(beside.parent)
    folder = beside.with_name(f".vllm-{secrets.token_hex(4)}")
    with _owned(folder) as is_owned:  # claimed before it exists, so that no process takes it for an orphan
        assert is_owned, "no other process knows this name"
        folder.mkdir()
        worker = Worker(config, folder, environment)
        try:
            yield worker
            worker.end()
        except BaseException:  # also an exit or Ctrl-C: the worker must not outlive this process
            worker.kill()
            for path in folder.glob("*"):
                if path.name != LOG:
                    path.unlink()
            raise
        worker.kill()
        shutil.rmtree(folder)


@contextmanager
def _owned(folder: Path) -> Iterator[bool]:
    """Hold the claim on a worker's folder during the block; yields False if a live process holds it."""
    lease = Lease(folder, "worker")
    taken = lease.take()
    try:
        yield taken
    finally:
        if taken:
            lease.release()


def environment_of(gpus: int) -> dict[str, str]:
    """The worker's environment: this process's without the rank variables, and with ``gpus`` GPUs for this rank."""
    names = {*ranks.NAMES, "LOCAL_WORLD_SIZE", "GROUP_RANK", ranks.STARTED}
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in names and not name.startswith("TORCHELASTIC_")
    }
    if ranks.world_size() > 1 and (count := ranks.visible_gpus()):
        listed = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
        first = ranks.local_rank() % count // gpus * gpus
        kept["CUDA_VISIBLE_DEVICES"] = ",".join(listed.split(",")[first : first + gpus])
    return {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",
        # vLLM keeps no states of a sample that fills its context, so its context must be longer than the target's.
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    } | kept


def _remove_orphans(folder: Path) -> None:
    """Remove the folders of failed workers, and of workers whose owner was killed on this machine."""
    for found in folder.glob(".vllm-*"):
        with _owned(found) as is_orphan:
            if is_orphan:
                shutil.rmtree(found, ignore_errors=True)
