"""Configurations of answers, a scripted source of them, and runs in processes of their own."""

import json
import os
import signal
import time
from pathlib import Path

import tiny

from pipeline.config import (
    AnswersConfig,
    Config,
    DataConfig,
    SourceConfig,
    TargetConfig,
)
from pipeline.prompts.rows import Rejection
from pipeline.store.artifacts import Store
from stages.cache.answers import run_answers
from stages.cache.source import AnswerReply, Refusal

TEXTS = ["a", "what is it?", "zz" * 9, "hello there", "0123456789", "why", "who", "when", "where", "how much"]


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def config(tmp_path: Path, folder: Path, rows: list[dict] | None = None, **fields) -> Config:
    rows = [{"prompt": text} for text in TEXTS] if rows is None else rows
    source = SourceConfig(path=str(write(tmp_path / "prompts.jsonl", rows)))
    values = {"source": "hf", "max_new_tokens": 12, "chunk_prompts": 4, "batch_size": 3} | fields.pop(
        "answers", {}
    )
    return Config(
        target=TargetConfig(
            name="tiny", path=str(folder), dtype="float32", device="cpu", **fields.pop("target", {})
        ),
        data=DataConfig(name="few", sources=[source], **({"heldout": 0.2} | fields.pop("data", {}))),
        answers=AnswersConfig(**values),
        **fields,
    )


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


class Scripted:
    """An engine that answers each message with its reversed text, one id a letter, or with a rejection."""

    context = 200

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def answer(self, requests, seed, advance):
        self.asked.append([request.messages[-1]["content"] for request in requests])
        return [self._reply(request) for request in requests]

    def _reply(self, request):
        text = request.messages[-1]["content"][::-1]
        if text == "dab":
            return Rejection("empty_answer")
        ids = [*tiny.tokenizer()(text)["input_ids"], 258]
        return AnswerReply(request.prompt_ids, ids, "stop", {"role": "assistant", "content": text})


def run(cfg: Config, root: Path, rank: int = 0, world: int = 1) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
    import torch

    torch.set_num_threads(1)
    run_answers(cfg, Store(root))


def many(tmp_path: Path, target: Path, temperature: float) -> Config:
    rows = [{"prompt": f"{text} {n}"} for n in range(3) for text in TEXTS] + [{"turns": ["one", "two"]}]
    return config(tmp_path, target, rows, answers={"max_new_tokens": 16, "temperature": temperature})


def kill_after(child, folder: Path, units: int, delay: float) -> None:
    """SIGKILL ``child`` a moment after ``units`` units lie in ``folder``."""
    deadline = time.monotonic() + 120
    while len(list(folder.glob("*.parquet"))) < units:
        assert child.is_alive() and time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(delay)
    os.kill(child.pid, signal.SIGKILL)
    child.join()


class Refusing(Scripted):
    def __init__(self, refused: list[str]) -> None:
        super().__init__()
        self.refused = refused

    def _reply(self, request):
        if request.messages[-1]["content"] in self.refused:
            return Refusal("refused_by_server", "http://x: status 400: too spicy")
        return super()._reply(request)
