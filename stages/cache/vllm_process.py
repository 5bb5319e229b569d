"""vLLM's worker as a process of its own: started, asked by lines of JSON, noticed when it ends or hangs, and ended.

vLLM needs other packages than draftline, so that it lives in an environment of its own (``capture.vllm.python``).
What is said over the pipes stands in vllm_worker/worker.py; token ids and states go through files in a folder.
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
LAST_LINES, MOST_ERRORS = 12, 3  # of the log, in an error
ERROR = re.compile(r"\b[\w.]*(?:Error|Exception): .+")
LOOK_SECONDS = 0.5  # between two looks whether the process still runs
END_SECONDS = 60.0  # for vLLM to give back what it holds
# Imports nothing of vLLM: that takes half a minute, and some builds have another package name.
VERSION = """
import importlib.util, pathlib, runpy, sys
found = importlib.util.find_spec("vllm")
if found is None:
    sys.exit("it has no package vllm")
print(runpy.run_path(str(pathlib.Path(found.submodule_search_locations[0]) / "_version.py"))["__version__"])
"""


class WorkerError(UserError):
    """vLLM ended, hung or said what it should not; the message says where its log lies, and what stands in it."""


def vllm_version(config: VllmConfig) -> str:
    """The version of vLLM in the environment of ``config.python``; ``ConfigError`` where there is none."""
    python = config.python or sys.executable
    try:
        done = subprocess.run(
            [python, "-c", VERSION], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"capture.vllm.python={python}: {error}") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise ConfigError(f"capture.vllm.python={python}: expected an interpreter that has vLLM: {said}")
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
                start_new_session=True,  # a group that can be ended as one
            )
        self._said: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def tell(self, message: dict[str, Any]) -> None:
        """Send one line; raises ``WorkerError`` when nobody is there to read it."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def hear(self) -> dict[str, Any]:
        """The next line; raises ``WorkerError`` when the worker ends, is silent too long, or says no JSON object."""
        deadline = time.monotonic() + self.timeout
        while True:
            is_gone = self.process.poll() is not None  # before the look: its last words are heard
            try:
                return self._object(self._said.get(timeout=LOOK_SECONDS))
            except queue.Empty:
                if is_gone:
                    raise self._ended() from None
            if time.monotonic() > deadline:
                raise self._error(f"said nothing for {self.timeout:g} s (capture.vllm.timeout)")

    def end(self) -> None:
        """Let vLLM end by itself, so that it gives back what it holds; ``kill`` follows in any case."""
        with suppress(WorkerError, subprocess.TimeoutExpired):  # all that it was asked for is there
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
        return self._error(f"ended with {self.process.returncode}")

    def _error(self, text: str) -> WorkerError:
        log = self.log.read_text(errors="replace")
        # What failed first, in a process of vLLM's, stands above the traceback of the one that waited for it.
        errors = list(dict.fromkeys(ERROR.findall(log)))[:MOST_ERRORS]
        parts = [("Errors in it:", errors), ("It ends with:", log.splitlines()[-LAST_LINES:])]
        shown = [line for title, lines in parts if lines for line in (title, *lines)]
        return WorkerError("\n".join([f"vLLM {text}; its log is {self.log}.", *shown]))


@contextmanager
def started(config: VllmConfig, beside: Path, environment: dict[str, str]) -> Iterator[Worker]:
    """A worker in a folder of its own beside ``beside``, removed at the end; if the worker failed, its log stays."""
    _remove_orphans(beside.parent)
    folder = beside.with_name(f".vllm-{secrets.token_hex(4)}")
    with _owned(
        folder
    ) as is_owned:  # before the folder is there, or another process might take it for an orphan
        assert is_owned, "no other process knows this name"
        folder.mkdir()
        worker = Worker(config, folder, environment)
        try:
            yield worker
            worker.end()
        except BaseException:
            worker.kill()
            for path in folder.glob("*"):
                if path.name != LOG:
                    path.unlink()
            raise
        worker.kill()
        shutil.rmtree(folder)


@contextmanager
def _owned(folder: Path) -> Iterator[bool]:
    """Hold the claim on a worker's folder for the block; False if a live process holds it."""
    lease = Lease(folder, "worker")
    taken = lease.take()
    try:
        yield taken
    finally:
        if taken:
            lease.release()


def environment_of(gpus: int) -> dict[str, str]:
    """The worker's environment: this one, less its place among the ranks, with ``gpus`` GPUs of this rank's own."""
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
        # vLLM keeps no states of a sample that fills its context; one that fills the target's needs a longer one.
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    } | kept


def _remove_orphans(folder: Path) -> None:
    """Remove the folders of workers that failed, or whose owner was killed on this machine."""
    for found in folder.glob(".vllm-*"):
        with _owned(found) as is_orphan:
            if is_orphan:
                shutil.rmtree(found, ignore_errors=True)
