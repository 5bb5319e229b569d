"""Engines as servers on loopback, for as long as a test needs them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from pipeline.ranks import free_port

PATIENCE = 300  # seconds until a server answers


@contextmanager
def server(command: list[str | Path], log: Path, port: int, **variables: str) -> Iterator[str]:
    """Run ``command``, wait until its /health answers, give its address, end it. ``log`` has what it says."""
    with log.open("w") as said:
        words = [str(word) for word in command]
        process = subprocess.Popen(words, stdout=said, stderr=said, env=os.environ | variables)
        try:
            _wait(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    for _ in range(2 * PATIENCE):
        assert process.poll() is None, f"the server ended: {log.read_text()[-3000:]}"
        try:
            if httpx.get(address + "/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"the server did not come up: {log.read_text()[-3000:]}")


@contextmanager
def llama_server(checkout: Path, target: Path, log: Path, *options: str | Path) -> Iterator[str]:
    """llama.cpp's server with one slot and fp32 caches."""
    port = free_port()
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
    command = [checkout / "build" / "bin" / "llama-server", "-m", target, "--no-webui", *plain, *options]
    with server([*command, "--host", "127.0.0.1", "--port", str(port)], log, port) as address:
        yield address
