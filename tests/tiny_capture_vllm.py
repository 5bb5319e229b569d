"""Captures by a stand-in for vLLM, which gives the states of a table that was made in process."""

import json
import sys
import time
from pathlib import Path

import fake_vllm
import psutil
import tiny
import torch

from data_specs.answers import AnswerRow, write_answers
from pipeline.config import CaptureConfig, Config, DataConfig, VllmConfig
from pipeline.store.artifacts import Artifact, Store
from stages.cache.capture import run_capture

LENGTHS = ((4, 6), (3, 9), (8, 2), (5, 5), (2, 20), (7, 1))  # prompt and answer tokens


TAPS = [3, -1, 0]  # vLLM gives 0, 1, 4, and 4 is the state before the final norm as well


def row_of(number: int, prompt: int, answer: int) -> AnswerRow:
    ids = torch.randint(250, (prompt + answer,), generator=torch.Generator().manual_seed(number)).tolist()
    return AnswerRow(
        key=f"{number:02d}" * 32, split="train", category=None, turn=0, prompt_ids=ids[:prompt],
        answer_ids=ids[prompt:], finish_reason="stop", messages="[]", thinking=None, sampling="{}",
    )  # fmt: skip


def config_of(target: Path, root: Path, **settings: object) -> Config:
    capture: dict[str, object] = {
        "batch_tokens": 10, "segment_tokens": 24, "chunk_tokens": 4, "shard_tokens": 16,
        "logits": "topk", "top_k": 3,
    }  # fmt: skip
    return Config(
        target=tiny.located(target, taps=TAPS),
        data=DataConfig(name="words"),
        capture=CaptureConfig(**capture | settings),  # type: ignore[arg-type]
        artifacts=str(root),
    )


def captured(config: Config) -> Artifact:
    store = Store(config.artifacts)
    if not store.list("answers"):
        work = store.begin("answers", "tiny_words", 1, "a" * 64, {}, {})
        write_answers(work.path / "00000.parquet", [row_of(i, *both) for i, both in enumerate(LENGTHS)])
        store.commit(work, {})
    made = run_capture(config, store, store.resolve("answers", "tiny_words"))
    assert made is not None
    return made


def by_vllm(target: Path, root: Path, table: Path, fault: str | None = None, timeout: float = 60.0) -> Config:
    options = {"table": str(table), "fault": fault}
    return config_of(
        target, root, source="vllm", vllm=VllmConfig(python=sys.executable, timeout=60.0, options=options)
    )


def leftovers(root: Path) -> list[str]:
    """What the exchange with the worker left behind."""
    return sorted(path.name for path in root.glob("cache/tiny_words/.vllm-*/*"))


def check_equal(one: Artifact, other: Artifact) -> None:
    """Every array and record, to the last bit."""
    files = [{k: v for k, v in made.manifest.files.items() if k != "cache.json"} for made in (one, other)]
    assert files[0] == files[1]
    assert len(files[0]) > 20


SAMPLE = f"{'02' * 32}:0"  # the third, which has the fault
WRONG: dict[str, list[object]] = {  # what each error names
    "few": [1, "{'files': []"],
    "short": [SAMPLE, "hidden_states", "torch.float32", (10, 3, 32), (9, 3, 32)],
    "not finite": [SAMPLE, "hidden", 1, 10],
    "half precision": [SAMPLE, "hidden_states", "torch.float32", "torch.float16"],
    "another sample": [SAMPLE, "token_ids", "[98,", "[11,"],
    "another order": [SAMPLE, "token"],
    "half a file": [SAMPLE, "3-0.safetensors"],
}


# The exit status, the log's name and what stands in it.
FAILED: dict[str, list[object]] = {
    "refuses": [1, "worker.log", "ValueError: no such architecture"],
    "engine dies": [1, "worker.log", "a process of vLLM has ended"],
    "dies": [-9, "worker.log", "vLLM prints to standard output"],
}


class WorkerHere:
    """Answers in this process, out of the table."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder = folder
        extra = {"shared_storage_path": str(folder)}
        self.llm = fake_vllm.LLM(kv_transfer_config={"kv_connector_extra_config": extra}, **options)

    def tell(self, message: dict[str, str]) -> None:
        samples = json.loads((self.folder / message["batch"]).read_text())
        made = self.llm.generate([{"prompt_token_ids": ids} for ids in samples], None, use_tqdm=False)
        files = [Path(output.kv_transfer_params["hidden_states_path"]).name for output in made]
        self.said = {"files": files, "next": [output.outputs[0].token_ids[0] for output in made]}

    def hear(self) -> dict[str, list]:
        return self.said


def ended(pid: int) -> bool:
    """Whether a process ends within ten seconds (one that nobody waits for stays as a zombie)."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False
