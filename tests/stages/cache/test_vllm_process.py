import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_capture_vllm import FAILED, by_vllm, captured, check_equal, config_of, ended, leftovers
from tiny_errors import refused

from pipeline.config import ConfigError, VllmConfig
from pipeline.store.artifacts import Artifact, Store
from pipeline.target.model import States
from stages.cache.capture_vllm import VllmTarget, llm_arguments
from stages.cache.vllm_process import WorkerError, environment_of, vllm_version


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("fault", FAILED)
def test_a_worker_that_fails_is_named_and_nothing_half_is_written(
    fault: str, target_folder: Path, tmp_path: Path, table: Path
) -> None:
    with refused(WorkerError, *FAILED[fault]):
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
    with refused(WorkerError, 1.5, "capture.vllm.timeout", "worker.log"):
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


def test_an_interpreter_without_vllm_is_named(target_folder: Path, tmp_path: Path) -> None:
    for python, said in ((None, sys.executable), ("/no/python", "No such file")):
        config = config_of(target_folder, tmp_path, source="vllm", vllm=VllmConfig(python=python))
        with refused(ConfigError, "capture.vllm.python=", said):
            captured(config)
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("fake")
def test_the_version_is_read_without_importing_vllm() -> None:
    assert vllm_version(VllmConfig()) == "7.8.9"


def test_an_option_that_is_decided_here_is_refused(target_folder: Path, tmp_path: Path) -> None:
    config = config_of(
        target_folder, tmp_path, vllm=VllmConfig(options={"gpu_memory_utilization": 0.5, "model": "x"})
    )
    with refused(ConfigError, "capture.vllm.options.model"):
        llm_arguments(config, [1], 20)


def test_each_rank_that_leads_has_its_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.ranks.visible_gpus", lambda: 4)
    place = {"RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for name, value in (place | {"CUDA_VISIBLE_DEVICES": "3,4,5,6", "TORCHELASTIC_RUN_ID": "x"}).items():
        monkeypatch.setenv(name, value)
    found = environment_of(2)
    assert found["CUDA_VISIBLE_DEVICES"] == "5,6"
    assert not {*place, "TORCHELASTIC_RUN_ID"} & set(found)
    assert found["VLLM_NO_USAGE_STATS"] == "1"
