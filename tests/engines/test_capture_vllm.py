"""The states of the real vLLM equal those of the target in process, except for rounding (vLLM 0.32.0 on a CPU)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import results
import subjects
import torch
from environments import Environment
from tiny_errors import refused

from data_specs.answers import AnswerRow, write_answers
from pipeline.config import CaptureConfig, Config, DataConfig, TargetConfig, VllmConfig
from pipeline.states.reader import CacheReader
from pipeline.store.artifacts import Artifact, Store
from stages.cache.capture import run_capture
from stages.cache.capture_vllm import vllm_target
from stages.cache.forecast import spec_of
from stages.cache.plan import PlannedSample
from stages.cache.vllm_process import WorkerError

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900, func_only=True)]
LENGTHS = ((4, 60), (3, 9), (30, 2), (5, 41), (2, 150), (7, 1))  # numbers of prompt and answer tokens


def row_of(number: int, prompt: int, answer: int) -> AnswerRow:
    ids = torch.randint(250, (prompt + answer,), generator=torch.Generator().manual_seed(number)).tolist()
    return AnswerRow(
        key=f"{number:02d}" * 32, split="train", category=None, turn=0, prompt_ids=ids[:prompt],
        answer_ids=ids[prompt:], finish_reason="stop", messages="[]", thinking=None, sampling="{}",
    )  # fmt: skip


def config_of(target: TargetConfig, root: Path, **settings: object) -> Config:
    sizes = {"batch_tokens": 200, "segment_tokens": 100, "chunk_tokens": 16, "shard_tokens": 64}
    capture = CaptureConfig(**sizes | settings)  # type: ignore[arg-type]
    return Config(target=target, data=DataConfig(name="words"), capture=capture, artifacts=str(root))


def by_vllm(target: TargetConfig, root: Path, vllm: Environment) -> Config:
    options = {"kv_cache_memory_bytes": 128 << 20, "enforce_eager": True}
    own = VllmConfig(python=str(vllm.python), timeout=300.0, options=options)
    return config_of(target, root, source="vllm", vllm=own)


def captured(config: Config) -> Artifact:
    store = Store(config.artifacts)
    if not store.list("answers"):
        work = store.begin("answers", "tiny_words", 1, "a" * 64, {}, {})
        write_answers(work.path / "00000.parquet", [row_of(i, *both) for i, both in enumerate(LENGTHS)])
        store.commit(work, {})
    made = run_capture(config, store, store.resolve("answers", "tiny_words"))
    assert made is not None
    return made


def error(made: Artifact, exact: Artifact) -> float:
    """The largest relative error |a - b| / |b| (Frobenius norm) of a tap or of the final states, over all samples."""
    readers = [CacheReader(artifact.path) for artifact in (made, exact)]
    assert readers[0].keys == readers[1].keys
    parts: list[tuple[list[torch.Tensor], ...]] = []
    for i in range(len(LENGTHS)):
        one, other = (reader.read(i) for reader in readers)
        assert torch.equal(one.input_ids, other.input_ids)
        assert torch.equal(one.loss_mask, other.loss_mask)
        taps = len(readers[0].spec.taps)
        parts.append(tuple([*s.hidden.chunk(taps, -1), s.last_hidden] for s in (one, other)))
    worst = 0.0
    for layer in range(taps + 1):
        a, b = (torch.cat([sample[which][layer].float() for sample in parts]) for which in (0, 1))
        worst = max(worst, float((a - b).norm() / b.norm()))
    return worst


def recorded(vllm: Environment, name: str, shown: str, holds: bool) -> None:
    results.add_figure(vllm.versions, name, "capture.source=vllm", shown, holds)
    assert holds, shown


@pytest.mark.parametrize("processes", [1, 2])
def test_states_in_fp32_are_those_of_the_target_in_process(
    processes: int,
    vllm: Environment,
    bench: subjects.Bench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Taps are unordered and include the embedding and the last layer. vLLM runs alone and split (tensor_parallel)."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # else it needs a NUMA node for each process
    target = replace(bench.config, taps=[3, -1, 1, 0])
    ours = captured(config_of(target, tmp_path))
    theirs = captured(by_vllm(replace(target, tensor_parallel=processes), tmp_path, vllm))
    assert theirs.manifest.counts["engine"] == "vllm 0.32.0"
    found = error(theirs, ours)
    name = f"{bench.name}, fp32" + (f", on {processes} processes" if processes > 1 else "")
    recorded(vllm, name, f"states differ by {found:.1e}", found < 1e-5)


@pytest.mark.parametrize("name", ["tiny", "smollm2"])
def test_states_in_bf16_are_as_near_to_the_exact_ones_as_those_in_process(
    name: str, vllm: Environment, bench: subjects.Bench, tmp_path: Path
) -> None:
    exact = replace(bench.config if name == "tiny" else subjects.SMOLLM2, taps=[1, 2, 3])
    target = replace(exact, dtype="bfloat16")
    reference = captured(config_of(exact, tmp_path))
    configs = (config_of(target, tmp_path), by_vllm(target, tmp_path, vllm))
    ours, theirs = (error(captured(config), reference) for config in configs)
    shown = f"states differ from fp32's by {theirs:.1e}, in process by {ours:.1e}"
    recorded(vllm, f"{name}, bf16", shown, theirs < 1.5 * ours < 0.1)


@pytest.mark.parametrize("killed", ["engine", "stage"])
def test_what_is_killed_takes_all_of_vllm_with_it(
    killed: str, vllm: Environment, bench: subjects.Bench, tmp_path: Path
) -> None:
    """kill -9 of vLLM's engine, which is a process of its own, and of the stage, which closes the worker's pipe."""
    config = by_vllm(replace(bench.config, taps=[1]), tmp_path, vllm)
    ids = torch.arange(20)
    batches, spec = [[PlannedSample("one", "train", ids, ids > 3)]], spec_of(config, bench.tensors.config)
    said = "a process of vLLM has ended" if killed == "engine" else "as it was to be"
    with refused(WorkerError, said), vllm_target(config, spec, tmp_path / "work", 20) as target:
        assert len(list(target.states(batches))) == 1
        process = target.worker.process
        others = psutil.Process(process.pid).children(recursive=True)
        assert others
        if killed == "stage":
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(30) == -9
            assert not target.worker.folder.exists()
            raise WorkerError("as it was to be")
        (engine,) = [other for other in others if "EngineCore" in " ".join(other.cmdline())]
        engine.kill()
        list(target.states(batches))
    _, alive = psutil.wait_procs(others, timeout=30)
    assert not alive
