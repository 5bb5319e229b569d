"""Engines as servers on loopback, for as long as a test needs them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from environments import Environment

from pipeline.ranks import free_port

PATIENCE = 300  # seconds until a server answers


@dataclass(frozen=True)
class Server:
    """One that answers at ``url``."""

    url: str
    port: int
    process: subprocess.Popen[bytes]


@contextmanager
def served(
    command: Sequence[str | Path], log: Path, port: int | None = None, **variables: str
) -> Iterator[Server]:
    """``command`` with a host and a port, until it is not needed. ``log`` has what it says."""
    port = port or free_port()
    words = [*map(str, command), "--host", "127.0.0.1", "--port", str(port)]
    with log.open("a") as said:
        process = subprocess.Popen(words, stdout=said, stderr=said, env=os.environ | variables)
        try:
            server = Server(f"http://127.0.0.1:{port}", port, process)
            _wait(server, log)
            yield server
        finally:
            process.terminate()
            process.wait()


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


def llama_server(environment: Environment, target: Path, *options: str | Path) -> list[str | Path]:
    """llama.cpp's server with one slot and fp32 caches."""
    program = environment.folder / "llama.cpp" / "build" / "bin" / "llama-server"
    plain = [
        "-c",
        "1024",
        "-np",
        "1",
        "-t",
        "2",
        "-ctk",
        "f32",
        "-ctv",
        "f32",
        "--cache-ram",
        "0",
        "--metrics",
    ]
    return [program, "-m", target, "--no-webui", *plain, *options]


def vllm_server(environment: Environment, target: Path) -> list[str | Path]:
    """vLLM's OpenAI-compatible server."""
    small = ["--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", "134217728"]
    program = [environment.python, "-m", "vllm.entrypoints.openai.api_server"]
    return [*program, "--model", target, *small, "--max-model-len", "512", "--max-num-seqs", "2"]
