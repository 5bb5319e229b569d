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


def test_the_target_is_served_at_the_revision_that_the_export_says(
    tmp_path: Path, where: dict[str, str]
) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3DSparkModel"], "block_size": 7}')
    origin = {"draft": {"reference": "tiny:v1"}, "target": {"hub_id": "org/target", "revision": "abc"}}
    (tmp_path / "provenance.json").write_text(json.dumps(origin))
    for engine in ("vllm", "sglang"):
        assert words_after("--revision", run(engine, tmp_path, **where)) == ["abc"]
        assert words_after("--revision", run(engine, tmp_path, "org/other", **where)) == []


def test_llama_cpp_serves_the_files_of_the_export(tmp_path: Path, where: dict[str, str]) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3DSparkModel"], "block_size": 7}')
    for file in ("draft.gguf", "target.gguf", "other.gguf"):
        (tmp_path / file).write_text("")
    assert words_after("-m", run("llama_cpp", tmp_path, **where)) == [f"{tmp_path}/target.gguf"]
    assert words_after("-m", run("llama_cpp", f"{tmp_path}/", "-", **where)) == [f"{tmp_path}/target.gguf"]
    other = run("llama_cpp", tmp_path, tmp_path / "other.gguf", "--port", "9", **where)
    assert words_after("-m", other) == [f"{tmp_path}/other.gguf"]
    assert words_after("-md", other) == [f"{tmp_path}/draft.gguf"]


def test_an_export_for_another_engine_is_not_served(tmp_path: Path, where: dict[str, str]) -> None:
    """SGLang would read vLLM's taps one layer off, and accept little."""
    folder = exported(tmp_path, "vllm")
    done = run("sglang", folder, "org/target", **where)
    assert done.returncode == 2 and str(folder) in done.stderr
    assert "python -m pipeline stage=export export=sglang draft=DRAFT" in done.stderr
    library = exported(tmp_path, "speculators")
    assert run("vllm", library, "org/target", **where).returncode == 0
    done = run("mlx", library, "org/target", **where)
    assert done.returncode == 2 and "export=mlx" in done.stderr


def test_a_draft_is_not_served_before_it_is_exported(tmp_path: Path, where: dict[str, str]) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3DSparkModel"], "block_size": 7}')
    (tmp_path / "manifest.json").write_text('{"kind": "draft", "name": "tiny_dspark", "version": "v2"}')
    done = run("vllm", tmp_path, "org/target", **where)
    assert done.returncode == 2 and "kind draft" in done.stderr
    assert "python -m pipeline stage=export export=vllm draft=tiny_dspark:v2" in done.stderr


def test_an_error_names_what_is_missing(tmp_path: Path, where: dict[str, str]) -> None:
    done = run("vllm", tmp_path, "org/target", **where)
    assert done.returncode == 2 and str(tmp_path) in done.stderr and "config.json" in done.stderr
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3DSparkModel"], "block_size": 7}')
    done = run("llama_cpp", tmp_path, **where)
    assert done.returncode == 2 and f"{tmp_path}/draft.gguf" in done.stderr
    assert "stage=export export=llama_cpp draft=DRAFT export.converter=" in done.stderr
    done = run("vllm", tmp_path, "--port", "9", **where)
    assert done.returncode == 2 and f"{tmp_path}/provenance.json" in done.stderr
    (tmp_path / "provenance.json").write_text('{"target": {"hub_id": null}}')
    done = run("mlx", tmp_path, **where)
    assert done.returncode == 2 and "target.hub_id" in done.stderr and "TARGET" in done.stderr
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3MTPModel"]}')
    done = run("vllm", tmp_path, "org/target", **where)
    assert done.returncode == 2 and "Qwen3MTPModel" in done.stderr
    done = run("triton", tmp_path, **where)
    assert done.returncode == 2 and "triton" in done.stderr and "llama_cpp" in done.stderr
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


def test_the_helper_needs_only_the_standard_library(tmp_path: Path) -> None:
    """The engine's environment may lack draftline's dependencies; -S hides what is installed."""
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3DSparkModel"], "block_size": 7}')
    command = [sys.executable, "-S", "-m", "stages.export.serve", "mlx", str(tmp_path), "org/target"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=SCRIPT.parents[1])
    assert done.returncode == 0, done.stderr
    assert f"--drafter {tmp_path}" in done.stdout
