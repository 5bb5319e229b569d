"""Answers of known lengths and the caches that are captured of them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import torch

from data_specs.answers import SCHEMA, AnswerRow, write_answers
from data_specs.manifest import Manifest
from pipeline.config import CaptureConfig, Config, DataConfig, TargetConfig
from pipeline.store.artifacts import Artifact, Store
from stages.cache import capture as module
from stages.cache.capture import run_capture
from stages.cache.plan import PlannedSample, plan_capture

LENGTHS = ((4, 6), (3, 9), (8, 2), (5, 5), (2, 20), (7, 1))  # prompt and answer tokens


def row_of(number: int, prompt: int, answer: int, **changes: object) -> AnswerRow:
    generator = torch.Generator().manual_seed(number)
    values: dict[str, object] = {
        "key": f"{number:02d}" * 32, "split": "heldout" if number % 3 == 2 else "train",
        "category": None, "turn": 0,
        "prompt_ids": torch.randint(250, (prompt,), generator=generator).tolist(),
        "answer_ids": torch.randint(250, (answer,), generator=generator).tolist(),
        "finish_reason": "stop", "messages": "[]", "thinking": None, "sampling": "{}",
    }  # fmt: skip
    return AnswerRow(**(values | changes))  # type: ignore[arg-type]


ROWS = [row_of(number, *lengths) for number, lengths in enumerate(LENGTHS)]


def table_of(rows: Sequence[AnswerRow]) -> pa.Table:
    return pa.Table.from_pylist([vars(row) for row in rows], SCHEMA)


def answers_of(root: Path, rows: Sequence[AnswerRow], **target: object) -> Artifact:
    """A committed answers artifact, in two files out of order."""
    store = Store(root)
    work = store.begin("answers", "tiny_words", 1, "a" * 64, {}, {"target": target})
    write_answers(work.path / "00001.parquet", rows[:2])
    write_answers(work.path / "00000.parquet", rows[2:])
    return store.commit(work, {})


def config_of(target_folder: Path, root: Path, **capture_changes: object) -> Config:
    settings: dict[str, object] = {
        "max_length": 64, "batch_tokens": 40, "segment_tokens": 24, "chunk_tokens": 4, "shard_tokens": 16,
    }  # fmt: skip
    return Config(
        target=TargetConfig(
            name="tiny", path=str(target_folder), dtype="float32", device="cpu", taps=[-1, 0, 3]
        ),
        data=DataConfig(name="words"),
        capture=CaptureConfig(**(settings | capture_changes)),  # type: ignore[arg-type]
        artifacts=str(root),
    )


def run(target_folder: Path, root: Path, rows: Sequence[AnswerRow] = ROWS, **changes: object) -> Artifact:
    config = config_of(target_folder, root, **changes)
    artifact = run_capture(config, Store(root), answers_of(root, rows))
    assert artifact is not None
    return artifact


def plan_of(rows: Sequence[AnswerRow], **changes: object) -> module.CapturePlan:
    return plan_capture(table_of(rows), CaptureConfig(**changes), 272)  # type: ignore[arg-type]


def planned(length: int, key: str = "k") -> PlannedSample:
    return PlannedSample(key, "train", torch.arange(length), torch.ones(length, dtype=torch.bool))


SCRIPT = """
import sys, time
from pathlib import Path
from pipeline.store.artifacts import Store
from stages.cache import capture
sys.path.insert(0, {tests!r})
from tiny_capture import config_of
original = capture.write_segment
def slow(*args):
    time.sleep({pause})
    original(*args)
capture.write_segment = slow
store, config = Store({root!r}), config_of(Path({target!r}), Path({root!r}))
print(capture.run_capture(config, store, store.resolve("answers", "tiny_words")).path)
"""


def start(target_folder: Path, root: Path, pause: float, rank: int = 0, ranks: int = 1) -> subprocess.Popen:
    code = SCRIPT.format(
        tests=str(Path(__file__).parent), root=str(root), target=str(target_folder), pause=pause
    )
    environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)


def claims_of(pid: int, folder: Path) -> list[str]:
    """Segments that process ``pid`` is at work on."""
    held = []
    for path in folder.glob(".claims/.partial-*.0*.lock"):
        with contextlib.suppress(FileNotFoundError):
            held += [path.name] if f"pid={pid}\n" in path.read_text() else []
    return held


def same_contents(one: Manifest, other: Manifest) -> bool:
    """Equal arrays, index and records, whoever made them in however many runs."""
    return one.files == other.files and one.counts == other.counts and one.fingerprint == other.fingerprint
