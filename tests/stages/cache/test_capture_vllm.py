"""capture.source=vllm with a package that gives the states of a table (fake_vllm.py); real vLLM: tests/engines."""

import dataclasses
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import fake_vllm
import psutil
import pytest
import tiny
import tiny_targets
import torch
from safetensors.torch import save_file

from data_specs.answers import AnswerRow, write_answers
from data_specs.target_cache import CacheError
from pipeline.config import CaptureConfig, Config, ConfigError, DataConfig, VllmConfig
from pipeline.states.reader import CacheReader
from pipeline.store.artifacts import Artifact, Store
from pipeline.target.model import States, Target
from pipeline.target.tensors import load_tensors
from stages.cache.capture import capture, run_capture
from stages.cache.capture_vllm import VllmTarget, final_norm, llm_arguments, numbering, vllm_target
from stages.cache.forecast import spec_of
from stages.cache.plan import PlannedSample
from stages.cache.vllm_process import Worker, WorkerError, environment_of, vllm_version

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


@pytest.fixture(scope="module")
def in_process(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return captured(config_of(target_folder, tmp_path_factory.mktemp("hf")))


@pytest.fixture(scope="module")
def table(in_process: Artifact, target_folder: Path) -> Path:
    """Ids -> states as vLLM gives them: the taps, of which the last layer's is the state before the final norm."""
    target, found = Target.load(tiny.located(target_folder), TAPS), {}
    reader = CacheReader(in_process.path)
    for i in range(len(LENGTHS)):
        sample = reader.read(i)
        name = str(sample.input_ids.tolist())
        found[name] = sample.hidden.view(-1, 3, 32)[:, [1, 2, 0]].contiguous()
        found[f"{name} next"] = target.logits(sample.last_hidden[-1]).argmax()[None]
    path = in_process.path.parent / "table.safetensors"
    save_file(found, path)
    return path


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package vllm for the interpreter that runs the tests."""
    package = tmp_path / "packages" / "vllm"
    package.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("fake_vllm.py"), package / "__init__.py")
    (package / "_version.py").write_text("__version__ = '7.8.9'\n")
    (package / "platforms.py").write_text(
        "class current_platform:\n    is_cpu = staticmethod(lambda: True)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(package.parent))


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


# --- the same cache ---


@pytest.mark.usefixtures("fake")
def test_the_cache_is_that_of_the_target_in_process(
    in_process: Artifact, target_folder: Path, tmp_path: Path, table: Path
) -> None:
    config = by_vllm(target_folder, tmp_path / "store", table)
    config.target.tensor_parallel = 2  # of vLLM's own processes
    made = captured(config)
    check_equal(made, in_process)
    assert made.manifest.counts == in_process.manifest.counts | {"engine": "vllm 7.8.9"}
    assert made.manifest.config["capture"] == in_process.manifest.config["capture"] | {"engine": "vllm"}
    assert made.manifest.fingerprint != in_process.manifest.fingerprint
    assert [path.name for path in made.path.parent.iterdir()] == ["v0"]
    arguments = json.loads(table.with_suffix(".json").read_text())
    transfer = arguments.pop("kv_transfer_config")
    assert (transfer["kv_connector"], transfer["kv_connector_module_path"]) == (
        "CpuHiddenStates",
        "cpu_connector",
    )
    assert arguments == {
        "model": str(target_folder), "dtype": "float32", "tensor_parallel_size": 2, "trust_remote_code": False,
        "skip_tokenizer_init": True, "max_model_len": 24, "max_num_batched_tokens": 22, "max_num_seqs": 22,
        "enable_prefix_caching": False, "table": str(table), "fault": None,
        "speculative_config": {
            "method": "extract_hidden_states", "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 4]}},
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("taps", "expected"),
    [
        ([3, -1, 0], ([0, 1, 4, 36], [2, 0, 1])),
        ([35, 1], ([2, 36], [1, 0])),
    ],
)
def test_layers_are_asked_for_in_the_order_that_vllm_gives_them(taps: list[int], expected: object) -> None:
    assert numbering(taps, 36) == expected


@pytest.mark.parametrize("family", ["gemma3", "gemma4", "gpt_oss"])
def test_the_final_norm_is_the_targets_own(family: str, tmp_path: Path) -> None:
    config = tiny.located(tiny_targets.save(family, tmp_path / family))
    weight, states = torch.rand(32) + 0.5, torch.randn(5, 3, 32)[:, 1]
    whole = Target.load(config, [0]).decoder.norm
    whole.weight.copy_(weight)
    made = final_norm(config, dataclasses.replace(load_tensors(config), final_norm=weight))
    assert torch.equal(made(states), whole(states))
    assert not torch.allclose(made(states), states, atol=0.1)


# --- what goes wrong ---

WRONG = {
    "few": r"vLLM: expected states of 1 samples, got {'files': \[\]",
    "short": r"sample 0202.*:0: hidden_states: expected torch.float32 of the shape \(10, 3, 32\), got .* \(9, 3, 32\)",
    "not finite": "sample 0202.*:0: hidden: not finite at token 1 of 10",
    "half precision": "sample 0202.*:0: hidden_states: expected torch.float32 .*, got torch.float16",
    "another sample": r"sample 0202.*:0: token_ids: expected 10 ids \[98, .*\]\.\.\., got 10 ids \[11, .* from vLLM",
    "another order": "sample 0202.*:0: vLLM goes on with token .*: these are not the target's final states",
    "half a file": "sample 0202.*:0: vLLM wrote no whole file of states: ",
}
FAILED = {
    "refuses": "vLLM ended with 1; its log is .*/worker.log.\nErrors in it:\nValueError: no such architecture\nIt",
    "engine dies": "vLLM ended with 1; .*\n(.|\n)*a process of vLLM has ended",
    "dies": "vLLM ended with -9; its log is .*/worker.log.\nIt ends with:\nvLLM prints to standard output",
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


@pytest.mark.parametrize("fault", WRONG)
def test_states_that_are_not_the_samples_are_refused(
    fault: str, in_process: Artifact, target_folder: Path, tmp_path: Path, table: Path
) -> None:
    reader = CacheReader(in_process.path)
    samples = [
        PlannedSample(reader.keys[i], "train", reader.read(i).input_ids, torch.ones(1)) for i in (0, 1, 2)
    ]
    config = config_of(target_folder, tmp_path)
    worker = WorkerHere(tmp_path, table=str(table), fault=fault)
    target = VllmTarget(worker, config.target, load_tensors(config.target), TAPS)  # type: ignore[arg-type]
    for sample in samples[:2]:
        assert len(list(capture(target, [sample], reader.spec, 10))) == 1
    with pytest.raises(CacheError, match=WRONG[fault]):
        list(capture(target, samples[2:], reader.spec, 10))


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("fault", FAILED)
def test_a_worker_that_fails_is_named_and_nothing_half_is_written(
    fault: str, target_folder: Path, tmp_path: Path, table: Path
) -> None:
    with pytest.raises(WorkerError, match=FAILED[fault]):
        captured(by_vllm(target_folder, tmp_path, table, fault))
    (partial,) = (tmp_path / "cache/tiny_words").glob(".partial-*")
    assert [path.name for path in partial.glob("segments/*")] == ([] if fault == "refuses" else ["00000"])
    assert leftovers(tmp_path) == ["worker.log"]
    assert Store(tmp_path).list("cache") == []


@pytest.mark.usefixtures("fake")
def test_a_rerun_after_a_hang_goes_on(
    in_process: Artifact, target_folder: Path, tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = VllmTarget.states

    def impatient(self: VllmTarget, batches: list) -> Iterator[list[States]]:
        self.worker.timeout = 1.5
        yield from states(self, batches)

    monkeypatch.setattr(VllmTarget, "states", impatient)
    with pytest.raises(WorkerError, match="vLLM said nothing for 1.5 s .capture.vllm.timeout.; its log is"):
        captured(by_vllm(target_folder, tmp_path, table, "hangs"))
    monkeypatch.setattr(VllmTarget, "states", states)
    child = int((tmp_path / "cache/tiny_words/child").read_text())
    assert ended(child)
    (first,) = (tmp_path / "cache/tiny_words").glob(".partial-*/segments/*")
    kept = (first / "segment.json").stat().st_mtime_ns
    made = captured(by_vllm(target_folder, tmp_path, table))
    check_equal(made, in_process)
    assert (made.path / "segments/00000/segment.json").stat().st_mtime_ns == kept
    assert leftovers(tmp_path) == []


def ended(pid: int) -> bool:
    """Whether a process ends within ten seconds (one that nobody waits for stays as a zombie)."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.usefixtures("fake")
def test_the_worker_and_its_processes_end_with_a_stage_that_is_killed(tmp_path: Path, table: Path) -> None:
    """kill -9 closes the pipes and does nothing else."""
    folder = tmp_path / "exchange"
    folder.mkdir()
    worker = Worker(VllmConfig(python=sys.executable, timeout=60.0), folder, environment_of(1))
    worker.tell({"table": str(table), "fault": "hangs"})
    assert worker.hear() == {"ready": True}
    for number, samples in enumerate([[], [], [[1]]]):
        (folder / f"{number}.json").write_text(json.dumps(samples))
        worker.tell({"batch": f"{number}.json"})
    while not (tmp_path / "child").exists():
        time.sleep(0.02)
    assert worker.process.stdin is not None
    worker.process.stdin.close()
    assert worker.process.wait(10) == -9
    assert ended(int((tmp_path / "child").read_text()))
    assert not folder.exists()


# --- what is refused before anything starts ---


def test_an_interpreter_without_vllm_is_named(target_folder: Path, tmp_path: Path) -> None:
    for python, said in ((None, "it has no package vllm"), ("/no/python", "No such file")):
        config = config_of(target_folder, tmp_path, source="vllm", vllm=VllmConfig(python=python))
        with pytest.raises(ConfigError, match=f"capture.vllm.python=.*{said}"):
            captured(config)
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("fake")
def test_the_version_is_read_without_importing_vllm() -> None:
    assert vllm_version(VllmConfig()) == "7.8.9"


def test_an_option_that_is_decided_here_is_refused(target_folder: Path, tmp_path: Path) -> None:
    config = config_of(
        target_folder, tmp_path, vllm=VllmConfig(options={"gpu_memory_utilization": 0.5, "model": "x"})
    )
    with pytest.raises(ConfigError, match=r"capture.vllm.options.model: decided by the target"):
        llm_arguments(config, [1], 20)


def test_a_target_of_several_streams_is_refused(tmp_path: Path) -> None:
    config = config_of(tiny_targets.save("deepseek_v4", tmp_path / "target"), tmp_path, source="vllm")
    config.target.taps = [0]
    spec = spec_of(config, load_tensors(config.target).config)
    with (
        pytest.raises(ConfigError, match="capture.source=vllm: .* passes on 4 streams"),
        vllm_target(config, spec, tmp_path / "work", 20),
    ):
        pass


def test_each_rank_that_leads_has_its_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.ranks.visible_gpus", lambda: 4)
    place = {"RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for name, value in (place | {"CUDA_VISIBLE_DEVICES": "3,4,5,6", "TORCHELASTIC_RUN_ID": "x"}).items():
        monkeypatch.setenv(name, value)
    found = environment_of(2)
    assert found["CUDA_VISIBLE_DEVICES"] == "5,6"
    assert not {*place, "TORCHELASTIC_RUN_ID"} & set(found)
    assert found["VLLM_NO_USAGE_STATS"] == "1"
