"""Starts engines as servers on loopback and ends them when a test no longer needs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from environments import Environment

from pipeline.ranks import free_port

PATIENCE = 300  # seconds until a server answers


@dataclass(frozen=True)
class Server:
    """A server that answers at ``url``."""

    url: str
    port: int
    process: subprocess.Popen[bytes]


@contextmanager
def served(
    command: Sequence[str | Path], log: Path, port: int | None = None, **variables: str
) -> Iterator[Server]:
    """Run ``command`` with a host and a port during the block; ``log`` gets its output.

    The server has its own session, which ends as a whole, because vLLM's engine survives when its front is killed.
    """
    port = port or free_port()
    words = [*map(str, command), "--host", "127.0.0.1", "--port", str(port)]
    with log.open("a") as said:
        process = subprocess.Popen(
            words, stdout=said, stderr=said, env=os.environ | variables, start_new_session=True
        )
        try:
            server = Server(f"http://127.0.0.1:{port}", port, process)
            _wait(server, log)
            yield server
        finally:
            process.terminate()
            process.wait()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _wait(server: Server, log: Path) -> None:
    for _ in range(2 * PATIENCE):
        assert server.process.poll() is None, f"the server ended: {log.read_text()[-3000:]}"
        try:
            if httpx.get(server.url + "/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"the server did not come up: {log.read_text()[-3000:]}")


SERVE_DRAFT = Path(__file__).parents[2] / "launch" / "serve_draft.sh"
# They give one slot and fp32 caches.
LLAMA_OPTIONS = [
    "-c", "1024", "-np", "1", "-t", "2", "-ctk", "f32", "-ctv", "f32", "--cache-ram", "0", "--metrics", "--no-webui",
]  # fmt: skip
VLLM_OPTIONS = [
    "--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", "134217728",
    "--max-model-len", "512", "--max-num-seqs", "2",
]  # fmt: skip


def llama_server(environment: Environment, target: Path, *options: str | Path) -> list[str | Path]:
    """The command of llama.cpp's server."""
    return [_llama(environment), "-m", target, *LLAMA_OPTIONS, *options]


def vllm_server(environment: Environment, target: Path) -> list[str | Path]:
    """The command of vLLM's OpenAI-compatible server."""
    program = [environment.python, "-m", "vllm.entrypoints.openai.api_server"]
    return [*program, "--model", target, *VLLM_OPTIONS]


def draft_server(engine: str, export: Path, *target: Path) -> list[str | Path]:
    """The command of launch/serve_draft.sh. An export knows its target unless that is a local folder."""
    options = {"vllm": VLLM_OPTIONS, "llama_cpp": [*LLAMA_OPTIONS, "-ctkd", "f32", "-ctvd", "f32"]}
    return [SERVE_DRAFT, engine, export, *target, *options[engine]]


def programs(engine: str, environment: Environment) -> dict[str, str]:
    """The variables that tell the script the programs of ``environment``."""
    if engine == "vllm":
        return {"PYTHON": str(environment.python)}
    return {"PYTHON": sys.executable, "LLAMA_SERVER": str(_llama(environment))}


def _llama(environment: Environment) -> Path:
    return environment.folder / "llama.cpp" / "build" / "bin" / "llama-server"
