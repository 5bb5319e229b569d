import json
import subprocess
import sys
from pathlib import Path

import pytest
import shell
from shell import LAUNCH
from tiny_exports import saved

from pipeline.config import Config, ExportConfig
from pipeline.store.artifacts import Store
from stages.export import llama_cpp, mlx, sglang, vllm
from stages.export.layouts import block_layout
from stages.export.run import run_export

SCRIPT = LAUNCH / "serve_draft.sh"


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return shell.run(SCRIPT, *command, **variables)


@pytest.fixture
def program(tmp_path: Path) -> str:
    """Prints its arguments, one a line; the real interpreter runs stages.export.serve."""
    real = f'if [[ $2 == stages.export.serve ]]; then exec {sys.executable} "$@"; fi'
    return str(shell.fake(tmp_path, "program", f'{real}\nprintf "%s\\n" "$VLLM_USE_V2_MODEL_RUNNER" "$@"'))


def test_the_script() -> None:
    shell.check_script(SCRIPT)


@pytest.fixture
def where(program: str) -> dict[str, str]:
    """Every engine is ``program``."""
    return {"PYTHON": program, "LLAMA_SERVER": program, "MLX_DSPARK": program, "VLLM_USE_V2_MODEL_RUNNER": ""}


@pytest.mark.parametrize("name", ["dspark", "dflash_fill_in", "eagle3_llama"])
def test_it_starts_what_the_last_screen_of_an_export_names(
    tmp_path: Path, where: dict[str, str], name: str
) -> None:
    source = saved(name, tmp_path / "draft")[1]
    folder = tmp_path / "export"
    folder.mkdir()
    plan = vllm.plan if name == "eagle3_llama" else block_layout
    (folder / "config.json").write_text(json.dumps(plan(source).config))
    for file in ("draft.gguf", "target.gguf"):
        (folder / file).write_text("")
    for engine, serve in (
        ("vllm", vllm.serve),
        ("sglang", sglang.serve),
        ("llama_cpp", llama_cpp.serve),
        ("mlx", mlx.serve),
    ):
        done = run(engine, folder, "-" if engine == "llama_cpp" else "org/target", "--port", "9", **where)
        assert done.returncode == 0, done.stderr
        runner, *words = done.stdout.splitlines()
        assert words[words.index("--host") + 1] == "127.0.0.1" and words[-2:] == ["--port", "9"]
        *_, command = serve(source.facts, "org/target", str(folder))
        options = command.replace("'", "").split(" --")[1:]
        said = " ".join(words)
        assert all(f"--{option}" in said for option in options), (engine, options, said)
        assert runner == ("1" if (engine, source.facts.kind) == ("vllm", "dspark") else "")


def exported(root: Path, form: str, **settings: str) -> Path:
    """An export, as the stage makes it, of a draft whose folder has no reference."""
    saved("dspark", root / "draft")
    config = Config(artifacts=str(root), export=ExportConfig(formats=[form], **settings))  # type: ignore[arg-type]
    return run_export(config, Store(config.artifacts), root / "draft")[0].path


def words_after(option: str, done: subprocess.CompletedProcess[str]) -> list[str]:
    words = done.stdout.splitlines()
    return [words[i + 1] for i, word in enumerate(words) if word == option]


def test_an_export_knows_its_target(tmp_path: Path, where: dict[str, str]) -> None:
    folder = exported(tmp_path, "hub", target="org/target")
    for engine, option in (("vllm", "--model"), ("sglang", "--model-path"), ("mlx", "--model")):
        assert words_after(option, run(engine, folder, **where)) == ["org/target"]
        assert words_after(option, run(engine, folder, "--port", "9", **where)) == ["org/target"]
        assert words_after(option, run(engine, folder, "/models/mine", **where)) == ["/models/mine"]


def test_an_error_ends_the_script(tmp_path: Path, where: dict[str, str]) -> None:
    done = run("vllm", tmp_path, "org/target", **where)
    assert (done.returncode, done.stdout) == (2, "") and "config.json" in done.stderr
    assert run("-h").returncode == 0 and run("vllm").returncode == 2


def test_words_with_blanks_and_quotes_reach_the_engine_unchanged(
    tmp_path: Path, where: dict[str, str]
) -> None:
    folder = tmp_path / "an export's folder"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["Qwen3DSparkModel"], "block_size": 7}')
    done = run("mlx", folder, "/my models/$HOME", "--title", "a 'b' \"c\"", **where)
    assert words_after("--drafter", done) == [str(folder)]
    assert words_after("--model", done) == ["/my models/$HOME"]
    assert words_after("--title", done) == ["a 'b' \"c\""]
