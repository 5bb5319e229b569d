"""``stage=evaluate engine=...`` against real servers: what is served is what draftline's own evaluation promised."""

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
from serving import llama_server, served, vllm_server

from data_specs.export import DRAFT_GGUF, TARGET_GGUF
from data_specs.manifest import read_json
from pipeline.artifacts import Artifact, Store
from pipeline.chat import render_prompt
from pipeline.config import ClientConfig, Config, EvaluateConfig, StageConfig, TrackingConfig
from stages.evaluate.report import SUMMARY
from stages.evaluate.run import run_evaluate
from stages.evaluate.served import run_served
from stages.export.source import read_source

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900, func_only=True)]
TEXTS = ["Hello?", "What is rain?", "Count to ten."]  # the drafts are trained on the answers to the first two


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> subjects.Bench:
    """The tiny target, with drafts that know its answers to ``TEXTS`` as they are asked in an evaluation."""
    asked = [render_prompt(tiny.tokenizer(), [{"role": "user", "content": text}], None) for text in TEXTS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subjects, "PROMPTS", asked)
        bench = subjects.Bench(tmp_path_factory.mktemp("chats"))
        for name in ("dspark", "eagle3"):
            bench.draft(name)
    return bench


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
    environment: Environment, engine: str, bench: subjects.Bench, name: str, folder: Path, commands: Sequence[Any],
    **variables: str,
) -> None:  # fmt: skip
    """``commands``: of a server with the draft, and of one without."""
    config = config_of(bench, folder)
    store = Store(config.artifacts)
    own = run_evaluate(config, store, bench.draft(name))
    config.engine = engine
    with (
        served(commands[0], folder / "draft.log", **variables) as server,
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
    results.add(environment.versions, "tiny", f"{name}, stage=evaluate", *told)
    assert theirs["counts"]["same_as_promised"] == theirs["counts"]["compared_with_promised"] == len(TEXTS)
    assert theirs["metrics"]["same_answers"]["value"] == 1.0
    assert theirs["metrics"]["accepted_length"]["value"] == ours["metrics"]["accepted_length"]["value"] > 1.2
    for count in ("answers", "tokens", "rounds", "emitted"):
        assert theirs["counts"][count] == ours["counts"][count], count
    assert made.manifest.parents["promised"] == own.manifest.fingerprint


def test_llama_cpp_serves_what_was_promised(llama_cpp, converter, chats, export, tmp_path) -> None:
    settings = {"converter": str(converter.script), "outtype": "f32", "target": str(chats.folder)}
    folder = export(chats.draft("dspark"), "llama_cpp", **settings)
    facts = read_source(folder).facts
    drafting = ["-md", folder / DRAFT_GGUF, "--spec-type", f"draft-{facts.kind}", "--spec-draft-p-min", "0"]
    drafting += ["--spec-draft-n-max", str(facts.drafts), "-ctkd", "f32", "-ctvd", "f32"]
    target = folder / TARGET_GGUF
    commands = [llama_server(llama_cpp, target, *drafting), llama_server(llama_cpp, target)]
    check(llama_cpp, "llama_cpp", chats, "dspark", tmp_path, commands)


def test_vllm_serves_what_was_promised(vllm, chats, export, tmp_path) -> None:
    folder = export(chats.draft("eagle3"), "vllm")
    facts = read_source(folder).facts
    drafting = {"method": facts.kind, "model": str(folder), "num_speculative_tokens": facts.drafts}
    plain = vllm_server(vllm, chats.folder)
    commands = [[*plain, "--speculative-config", json.dumps(drafting)], plain]
    check(vllm, "vllm", chats, "eagle3", tmp_path, commands)
