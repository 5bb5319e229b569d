"""The command that serves an export, word by word, and the exports that are refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from data_specs.manifest import write_json
from stages.export import serve
from stages.export.serve import Served, ServeError, command

ROOT = Path(__file__).parents[3]
DSPARK = {"architectures": ["Qwen3DSparkModel"], "block_size": 7}
HOST = ["--host", "127.0.0.1"]


@pytest.fixture(autouse=True)
def no_programs_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHON", "LLAMA_SERVER", "MLX_DSPARK", serve.RUNNER):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a downloaded DSpark, which has no manifest."""
    write_json(tmp_path / "config.json", DSPARK)
    return tmp_path


def words(engine: str, folder: Path, target: str = "org/target", *options: str) -> list[str]:
    return command(Served(engine, str(folder)), target, list(options))


def refused(engine: str, folder: Path, target: str = "org/target") -> str:
    with pytest.raises(ServeError) as error:
        words(engine, folder, target)
    return str(error.value)


# --- commands ---------------------------------------------------------------------------------------------


def test_vllm(folder: Path) -> None:
    *start, option, draft, port, number = words("vllm", folder, "org/target", "--port", "9")
    assert start == [
        "env", "VLLM_USE_V2_MODEL_RUNNER=1", "python", "-m", "vllm.entrypoints.openai.api_server", "--model",
        "org/target", *HOST,
    ]  # fmt: skip
    assert option == "--speculative-config"
    assert json.loads(draft) == {"method": "dspark", "model": str(folder), "num_speculative_tokens": 7}
    assert (port, number) == ("--port", "9")  # last, so that they override


def test_the_second_runner_of_vllm_is_for_dspark_and_may_be_set_by_hand(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(serve.RUNNER, "0")
    monkeypatch.setenv("PYTHON", "/opt/python")
    assert words("vllm", folder)[0] == "/opt/python"
    monkeypatch.delenv(serve.RUNNER)
    write_json(folder / "config.json", {"architectures": ["DFlashDraftModel"], "block_size": 8})
    assert words("vllm", folder)[0] == "/opt/python"


@pytest.mark.parametrize(
    ("config", "kind", "chain", "tokens"),
    [
        (DSPARK, "DSPARK", [], "8"),
        (DSPARK | {"sample_from_anchor": False}, "DSPARK", [], "7"),
        ({"architectures": ["DFlashDraftModel"], "block_size": 8}, "DFLASH", [], "8"),
        (
            {"architectures": ["LlamaForCausalLMEagle3"], "block_size": 7},
            "EAGLE3", ["--speculative-num-steps", "7", "--speculative-eagle-topk", "1"], "8",
        ),
        (
            {
                "speculators_model_type": "dflash",
                "speculators_config": {"proposal_methods": [{"speculative_tokens": 5}]},
            },
            "DFLASH", [], "6",
        ),
    ],
)  # fmt: skip
def test_sglang_counts_the_anchor_too(
    folder: Path, config: dict, kind: str, chain: list, tokens: str
) -> None:
    """One draft less than the block where the draft does not sample from the anchor."""
    write_json(folder / "config.json", config)
    assert words("sglang", folder) == [
        "python", "-m", "sglang.launch_server", "--model-path", "org/target", *HOST, "--speculative-algorithm", kind,
        "--speculative-draft-model-path", str(folder), *chain, "--speculative-num-draft-tokens", tokens,
    ]  # fmt: skip


def test_mlx(folder: Path) -> None:
    assert words("mlx", folder) == [
        "mlx-dspark", "serve", "--mode", "dspark", "--model", "org/target", "--drafter", str(folder),
        "--drafter-bits", "0", *HOST,
    ]  # fmt: skip


def test_llama_cpp_serves_the_files_of_the_export(folder: Path) -> None:
    for file in ("draft.gguf", "target.gguf", "other.gguf"):
        (folder / file).write_text("")
    expected = [
        "-md", f"{folder}/draft.gguf", *HOST, "--metrics", "--spec-type", "draft-dspark", "--spec-draft-n-max", "7",
    ]  # fmt: skip
    assert words("llama_cpp", folder, "") == ["llama-server", "-m", f"{folder}/target.gguf", *expected]
    other = f"{folder}/other.gguf"
    assert words("llama_cpp", folder, other) == ["llama-server", "-m", other, *expected]


def test_the_target_is_served_at_the_revision_that_the_export_says(folder: Path) -> None:
    origin = {"draft": {"reference": "tiny:v1"}, "target": {"hub_id": "org/target", "revision": "abc"}}
    write_json(folder / "provenance.json", origin)
    for engine in ("vllm", "sglang"):
        own = words(engine, folder, "")
        assert own[own.index("org/target") :][:3] == ["org/target", "--revision", "abc"]
        assert "--revision" not in words(engine, folder, "org/other")
    assert "abc" not in words("mlx", folder, "")  # which takes no revision


# --- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "form", "fits"),
    [
        ("vllm", "vllm", True), ("vllm", "hub", True), ("vllm", "speculators", True), ("vllm", "sglang", False),
        ("sglang", "vllm", False), ("mlx", "speculators", False),
    ],
)  # fmt: skip
def test_an_export_for_another_engine_is_not_served(folder: Path, engine: str, form: str, fits: bool) -> None:
    """SGLang would read vLLM's taps one layer off, and accept little."""
    write_json(folder / "manifest.json", {"kind": "export", "config": {"format": form}})
    if fits:
        assert str(folder) in " ".join(words(engine, folder))
        return
    assert f"stage=export export={engine} draft=DRAFT" in refused(engine, folder)
    write_json(folder / "provenance.json", {"draft": {"reference": "tiny:v1"}})
    said = refused(engine, folder)
    assert str(folder) in said and f"export={engine} draft=tiny:v1" in said


def test_a_draft_is_not_served_before_it_is_exported(folder: Path) -> None:
    write_json(folder / "manifest.json", {"kind": "draft", "name": "tiny_dspark", "version": "v2"})
    said = refused("vllm", folder)
    assert "kind draft" in said
    assert "python -m pipeline stage=export export=vllm draft=tiny_dspark:v2" in said


def test_an_error_names_what_is_missing(tmp_path: Path) -> None:
    said = refused("vllm", tmp_path)
    assert str(tmp_path) in said and "config.json" in said
    (tmp_path / "config.json").write_text("half a")
    assert f"{tmp_path}/config.json" in refused("vllm", tmp_path)
    write_json(tmp_path / "config.json", DSPARK)
    said = refused("llama_cpp", tmp_path, "")
    assert f"{tmp_path}/draft.gguf" in said
    assert "stage=export export=llama_cpp draft=DRAFT export.converter=" in said
    assert f"{tmp_path}/provenance.json" in refused("vllm", tmp_path, "")
    write_json(tmp_path / "provenance.json", {"target": {"hub_id": None}})
    said = refused("mlx", tmp_path, "")
    assert "target.hub_id" in said and f"mlx {tmp_path} TARGET" in said
    write_json(tmp_path / "config.json", {"architectures": ["Qwen3MTPModel"]})
    assert "Qwen3MTPModel" in refused("vllm", tmp_path)
    said = refused("triton", tmp_path)
    assert "triton" in said and "llama_cpp" in said


# --- as the script runs it --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "target", "options"),
    [
        ([], "org/own", ""), (["-"], "org/own", ""), (["--port", "9"], "org/own", " --port 9"),
        (["org/a", "--title", "a 'b'"], "org/a", """ --title 'a '"'"'b'"'"''"""),
    ],
)  # fmt: skip
def test_a_target_may_be_left_out(folder: Path, capsys, rest: list[str], target: str, options: str) -> None:
    """The command is quoted for the shell."""
    write_json(folder / "provenance.json", {"target": {"hub_id": "org/own"}})
    serve.main("mlx", f"{folder}/", *rest)
    drafted = f"--model {target} --drafter {folder} --drafter-bits 0 --host 127.0.0.1"
    assert capsys.readouterr().out == f"mlx-dspark serve --mode dspark {drafted}{options}\n"


def test_an_error_is_a_status_and_no_command(tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        serve.main("vllm", str(tmp_path), "org/target")
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "") and "config.json" in err


def test_it_needs_only_the_standard_library(folder: Path) -> None:
    """The engine's environment may lack draftline's dependencies; -S hides what is installed."""
    start = [sys.executable, "-S", "-m", "stages.export.serve", "mlx", str(folder), "org/target"]
    done = subprocess.run(start, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert f"--drafter {folder}" in done.stdout
