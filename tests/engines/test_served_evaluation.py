"""``stage=evaluate engine=...`` with real servers: the results equal those of draftline's own evaluation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import results
import subjects
import tiny
from environments import Environment
from serving import draft_server, llama_server, programs, served, vllm_server

from data_specs.export import TARGET_GGUF
from data_specs.manifest import read_json
from data_specs.results.summary import SUMMARY
from pipeline.config import ClientConfig, Config, EvaluateConfig, StageConfig, TrackingConfig
from pipeline.prompts.chat import render_prompt
from pipeline.store.artifacts import Artifact, Store
from stages.evaluate.run import run_evaluate
from stages.served.run import run_served

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900, func_only=True)]
TEXTS = ["Hello?", "What is rain?", "Count to ten."]  # the drafts are trained on the answers to the first two


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> subjects.Bench:
    """The tiny target with drafts trained on its answers to ``TEXTS``, in the form that an evaluation sends them."""
    asked = [render_prompt(tiny.tokenizer(), [{"role": "user", "content": text}], None) for text in TEXTS]
    return subjects.Bench(tmp_path_factory.mktemp("chats"), asked)


def config_of(bench: subjects.Bench, folder: Path) -> Config:
    rows = folder / "prompts.jsonl"
    rows.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    evaluate = EvaluateConfig(
        benchmarks=["gsm8k"], files={"gsm8k": str(rows)}, max_new_tokens=48, bootstrap=20, calibrate=False
    )
    return Config(
        stage=StageConfig("evaluate", ["evaluate"]), target=bench.config, evaluate=evaluate,
        tracking=TrackingConfig(mode="none"), client=ClientConfig(retries=2, backoff=0.1),
        artifacts=str(folder / "artifacts"),
    )  # fmt: skip


def check(
    environment: Environment,
    engine: str,
    bench: subjects.Bench,
    name: str,
    folder: Path,
    commands: Sequence[Any],
) -> None:
    """Compare the evaluations. ``commands`` start a server with the draft (launch/serve_draft.sh) and one without."""
    config = config_of(bench, folder)
    store = Store(config.artifacts)
    own = run_evaluate(config, store, bench.draft(name))
    config.engine = engine
    with (
        served(commands[0], folder / "draft.log", **programs(engine, environment)) as server,
        served(commands[1], folder / "plain.log") as plain,
    ):
        config.server, config.plain_server = server.url, plain.url
        made = run_served(config, store, bench.draft(name))
    assert own is not None and made is not None
    compare(environment, name, own, made)


def compare(environment: Environment, name: str, own: Artifact, made: Artifact) -> None:
    ours, theirs = (read_json(one.path / SUMMARY)["benchmarks"]["gsm8k"] for one in (own, made))
    told = [
        f"accepted length {found['metrics']['accepted_length']['value']:.4f}, {found['counts']['rounds']} rounds"
        for found in (theirs, ours)
    ]
    same = theirs["metrics"]["same_answers"]["value"] == 1.0
    same = same and theirs["counts"]["same_as_promised"] == len(TEXTS)
    results.add(environment.versions, "tiny", f"{name}, stage=evaluate", *told, same)
    assert theirs["counts"]["same_as_promised"] == theirs["counts"]["compared_with_promised"] == len(TEXTS)
    assert theirs["metrics"]["same_answers"]["value"] == 1.0
    assert theirs["metrics"]["accepted_length"]["value"] == ours["metrics"]["accepted_length"]["value"] > 1.2
    for count in ("answers", "tokens", "rounds", "emitted"):
        assert theirs["counts"][count] == ours["counts"][count], count
    assert made.manifest.parents["promised"] == own.manifest.fingerprint


def test_llama_cpp_serves_what_was_promised(llama_cpp, converter, chats, export, tmp_path) -> None:
    settings = {"converter": str(converter.script), "outtype": "f32", "target": str(chats.folder)}
    folder = export(chats.draft("dspark"), "llama_cpp", **settings)
    commands = [draft_server("llama_cpp", folder), llama_server(llama_cpp, folder / TARGET_GGUF)]
    check(llama_cpp, "llama_cpp", chats, "dspark", tmp_path, commands)


def test_vllm_serves_what_was_promised(vllm, chats, export, tmp_path) -> None:
    folder = export(chats.draft("eagle3"), "vllm")
    commands = [draft_server("vllm", folder, chats.folder), vllm_server(vllm, chats.folder)]
    check(vllm, "vllm", chats, "eagle3", tmp_path, commands)
