"""Runs a script of runners/ in an engine's environment: it reads a JSON request and prints a JSON answer last."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from environments import Environment
from subjects import Counters

RUNNERS = Path(__file__).parent / "runners"
MINUTES = 15


def ask(environment: Environment, runner: str, request: dict[str, Any], **variables: str) -> dict[str, Any]:
    """The answer of ``runner`` to ``request``. If it fails, the assertion shows its last lines."""
    done = subprocess.run(
        [environment.python, RUNNERS / runner],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=60 * MINUTES,
        env=os.environ | variables,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and lines, "\n".join((done.stdout + done.stderr).splitlines()[-40:])
    return json.loads(lines[-1])


def counted(answer: dict[str, Any]) -> Counters:
    """The counters in an answer."""
    found = answer["counters"]
    return Counters(int(found["drafts"]), int(found["accepted"]), [int(n) for n in found["by_position"]])
