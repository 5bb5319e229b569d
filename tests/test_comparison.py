"""A comparison by the command that a user types: Hydra composes the variants inside a run."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_last_variant_is_refused_before_the_first_is_made(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "pipeline", "experiment=compare_drafters", "ranks=1", f"artifacts={tmp_path}",
        f"hydra.run.dir={tmp_path / 'hydra'}", "+compare.drafters.small=['drafter.markov_rank=4']",
        "+compare.drafters.bad=['drafter=nothing']", "compare.table=[small,bad]",
    ]  # fmt: skip
    cache = {"XDG_CACHE_HOME": str(tmp_path)}  # the target's files are not touched either
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | cache, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 2, done.stdout + done.stderr
    told = done.stderr.splitlines()[-1]
    assert told.startswith("draftline: error: compare: variant bad (drafter=nothing evaluate.prompts=14")
    assert told.endswith("In 'config': Could not find 'drafter/nothing'")
    assert [path.name for path in tmp_path.iterdir()] == ["hydra"]
