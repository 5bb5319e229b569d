import sys
from pathlib import Path

from shell import LAUNCH, check_script, check_usage, fake, run

SCRIPT = LAUNCH / "local.sh"


def test_the_script() -> None:
    check_script(SCRIPT)
    check_usage(SCRIPT)


def test_it_passes_overrides_on(tmp_path: Path) -> None:
    python = fake(tmp_path, "python")
    done = run(SCRIPT, "-n", "4", "stage=train", "data.name=a b", PYTHON=str(python))
    assert done.stdout.splitlines() == ["-m", "pipeline", "ranks=4", "stage=train", "data.name=a b"]
    done = run(SCRIPT, "stage=list", PYTHON=str(python))
    assert done.stdout.splitlines() == ["-m", "pipeline", "stage=list"]


def test_it_runs_the_pipeline() -> None:
    done = run(SCRIPT, "--", "--help", PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    assert "stage" in done.stdout
