"""Answers by real servers on loopback: vLLM returns ids, llama.cpp only text. Both must equal the target's own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import environments
import pytest
import results
from environments import Environment
from serving import Server, llama_server, served, vllm_server
from subjects import SMOLLM2

from data_specs.answers import read_answers, read_counts
from data_specs.export import TARGET_GGUF
from pipeline.config import AnswersConfig, Config, DataConfig, OpenAIConfig, SourceConfig
from pipeline.store.artifacts import Store
from pipeline.target.location import locate
from stages.cache.answers import run_answers
from stages.cache.source_openai import ServerError
from stages.export.llama_cpp import Converter

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900, func_only=True)]
TEXTS = [
    "Name three primary colors.", "What is the capital of France?", "Count from one to ten.", "Who wrote Hamlet?",
    "What do bees make?", "Write a word that rhymes with cat.", "How many days has a week?", "Say good morning.",
]  # fmt: skip
UNITS = len(TEXTS) // 2


class Answers(NamedTuple):
    """``by_prompt`` are the ids of each answer and why it ended; ``counts`` is what the stage counted."""

    by_prompt: dict[str, tuple[list[int], str]]
    counts: dict[str, int]


def answered(folder: Path, engine: str, url: str = "") -> Answers:
    """The stage's greedy answers to ``TEXTS``, in units of two prompts."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = folder / "prompts.jsonl"
    rows.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    server = OpenAIConfig(base_urls=[f"{url}/v1"] if url else [], concurrency=2, retries=2, backoff=0.05)
    answers = AnswersConfig(
        engine, max_new_tokens=16, temperature=0.0, chunk_prompts=2, batch_size=1, openai=server
    )
    data = DataConfig(name="few", sources=[SourceConfig(path=str(rows))], heldout=0.25)
    artifact = run_answers(Config(target=SMOLLM2, data=data, answers=answers), Store(folder / "artifacts"))
    assert artifact is not None
    made = read_answers(artifact.path, ["prompt_ids", "answer_ids", "finish_reason"]).to_pylist()
    by_prompt = {str(row["prompt_ids"]): (row["answer_ids"], row["finish_reason"]) for row in made}
    return Answers(by_prompt, read_counts(artifact.path))


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The target's own answers, made in this process."""
    made = answered(tmp_path_factory.mktemp("own"), "hf")
    assert len(made.by_prompt) == len(TEXTS)
    return made


def check(
    command: Sequence[str | Path], own: Answers, folder: Path, versions: str, counts: dict[str, int]
) -> None:
    """Compare a whole run, and one whose server is killed after the first unit and started again.

    Both count ``counts``. Without ``retokenized``, all ids come from the engine.
    """
    with served(command, folder / "server.log") as server:
        whole = answered(folder / "whole", "openai", server.url)
        killed(server, folder / "killed")
    with served(command, folder / "server.log", server.port) as server:
        resumed = answered(folder / "killed", "openai", server.url)
    same = sum(whole.by_prompt.get(prompt) == answer for prompt, answer in own.by_prompt.items())
    ids = f"{counts.get('retokenized', 0)} of them from text"
    shown = f"{same} of {len(TEXTS)} answers are the target's own, also after a kill; {ids}"
    expected = own._replace(counts=counts)
    results.add_figure(versions, "SmolLM2-135M", "answers=openai", shown, whole == resumed == expected)
    assert whole == expected
    assert resumed == expected


def killed(server: Server, folder: Path) -> None:
    """Answer until the first unit is written, and end the server before the last one is."""

    def kill() -> None:
        while not list(folder.rglob("0*.parquet")):
            time.sleep(0.01)
        server.process.kill()

    watcher = threading.Thread(target=kill, daemon=True)
    watcher.start()
    with pytest.raises(ServerError):
        answered(folder, "openai", server.url)
    assert 1 <= len(list(folder.rglob("0*.parquet"))) < UNITS


def test_vllm_answers_as_the_target(vllm: Environment, own: Answers, tmp_path: Path) -> None:
    check(vllm_server(vllm, locate(SMOLLM2)), own, tmp_path, vllm.versions, {})


def test_llama_cpp_answers_as_the_target(
    llama_cpp: Environment, converter: Converter, own: Answers, tmp_path: Path
) -> None:
    written = ["--outtype", converter.outtype, "--outfile", tmp_path / TARGET_GGUF]
    environments.run([converter.python, converter.script, locate(SMOLLM2), *written])
    command = llama_server(llama_cpp, tmp_path / TARGET_GGUF)
    check(command, own, tmp_path, llama_cpp.versions, {"retokenized": len(TEXTS)})
