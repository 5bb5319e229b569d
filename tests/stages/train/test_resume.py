"""kill -9 at any moment, and SIGTERM: the artifact is that of an unbroken run (pitfalls 20, 34, 37)."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import tiny_cache
from tiny_errors import refused

from pipeline.config import Config, ConfigError
from pipeline.store.artifacts import Artifact, Store
from stages.train import checkpoints, loop
from stages.train.record import read_lines

STEPS = 24
CHANGES = {"steps": STEPS, "checkpoint_every": 3, "evaluate_every": 4, "lr": 1e-2, "warmup": 0.2}


def draft_of(config: Config) -> Artifact:
    return Store(config.artifacts).resolve("draft", "tiny_dspark")


def steps_of(artifact: Artifact) -> list[tuple[object, ...]]:
    """What must be equal line by line: everything but the times."""
    lines = read_lines(artifact.path / "metrics.jsonl")
    return [
        tuple(sorted((k, str(v)) for k, v in line.items() if k not in ("seconds", "waiting")))
        for line in lines
    ]


@pytest.fixture(scope="module")
def unbroken(
    request: pytest.FixtureRequest,
    made_cache: Path,
    target_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Artifact, float]:
    """The artifact of a run that nobody disturbed (its parameter: the ZeRO stage), and how long it took."""
    root = tmp_path_factory.mktemp("unbroken") / "artifacts"
    shutil.copytree(made_cache, root)
    config = tiny_cache.train_config(target_folder, root, **CHANGES)
    config.deepspeed.stage = getattr(request, "param", 0)
    tiny_cache.Process(
        tiny_cache.train_config(target_folder, root, **CHANGES | {"steps": 1})
    ).wait()  # warm up
    began = time.monotonic()
    assert tiny_cache.Process(config).wait() == 0
    seconds = time.monotonic() - began
    (found,) = [a for a in Store(root).list("draft") if a.manifest.counts["steps"] == STEPS]
    return found, seconds


def check_equal(artifact: Artifact, expected: Artifact) -> None:
    for name in ("model.safetensors", "last/model.safetensors", "config.json", "summary.json"):
        assert (artifact.path / name).read_bytes() == (expected.path / name).read_bytes(), name
    assert steps_of(artifact) == steps_of(expected)
    assert artifact.manifest.fingerprint == expected.manifest.fingerprint
    assert sorted(artifact.manifest.files) == sorted(expected.manifest.files)


def kill_and_finish(config: Config, expected: Artifact, seconds: float, kills: int, seed: int) -> int:
    """Kill the run ``kills`` times at random moments, then let it end; how often was it really killed?"""
    chance, killed = random.Random(seed), 0
    for _ in range(kills):
        process = tiny_cache.Process(config)
        time.sleep(chance.uniform(0.1, 0.9) * seconds)
        process.process.kill()  # does nothing when the run has ended already
        code = process.wait()
        assert code in (0, -signal.SIGKILL)
        killed += code != 0
    assert tiny_cache.Process(config).wait() == 0
    check_equal(draft_of(config), expected)
    return killed


def kill_for_sure(config: Config, unbroken: tuple[Artifact, float], kills: int, seed: int) -> None:
    """``kill_and_finish`` until a kill hit: after a miss (the machine got quicker) anew, in half the time."""
    expected, seconds = unbroken
    while not kill_and_finish(config, expected, seconds, kills, seed):
        shutil.rmtree(Path(config.artifacts) / "draft")
        seconds /= 2


def test_killed_three_times(cached, unbroken: tuple[Artifact, float]) -> None:
    kill_for_sure(cached.config(**CHANGES), unbroken, kills=3, seed=0)


def check_that_it_goes_on(
    cached, configs: list[Config], whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of ``configs[0]`` is interrupted after its second checkpoint, that of ``configs[1]`` is not."""
    monkeypatch.setattr(loop.record, "plot", lambda _, path: path.touch())
    shutil.copytree(Path(cached.store.root), whole)
    real, steps = checkpoints.complete, []

    def killed(folder: Path, step: int, layout: checkpoints.CheckpointLayout) -> checkpoints.Checkpoint:
        steps.append(step)
        real(folder, step, layout)
        if len(steps) == 2:
            raise KeyboardInterrupt
        return checkpoints.newest(folder)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "complete", killed)
        with pytest.raises(KeyboardInterrupt):
            loop.run_train(configs[0], cached.store, cached.cache)
    assert steps == [2, 4]
    ended = loop.run_train(configs[0], cached.store, cached.cache)
    store = Store(whole)
    undisturbed = loop.run_train(configs[1], store, store.resolve("cache", "tiny_chat"))
    assert ended is not None and undisturbed is not None
    check_equal(ended, undisturbed)


@pytest.mark.parametrize("algorithm", tiny_cache.DRAFTERS)
def test_every_drafter_goes_on(
    cached, target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    """Labels that are drawn are drawn again as they were."""
    whole = tmp_path / "whole"
    configs = [cached.config(algorithm), tiny_cache.train_config(target_folder, whole, algorithm)]
    if algorithm == "dspark":
        for config in configs:
            config.drafter.confidence_label = "sampled"
    check_that_it_goes_on(cached, configs, whole, monkeypatch)


@pytest.mark.parametrize("algorithm", ["dspark", "eagle3"])
def test_zero_3_goes_on_after_an_evaluation(
    cached, target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    """DeepSpeed left the loaded parameters whole, and the first step after an evaluation failed."""
    whole = tmp_path / "whole"
    configs = [
        cached.config(algorithm, evaluate_every=1),
        tiny_cache.train_config(target_folder, whole, algorithm, evaluate_every=1),
    ]
    for config in configs:
        config.deepspeed.stage = 3
    check_that_it_goes_on(cached, configs, whole, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("unbroken", [1], indirect=True, ids=["zero1"])
def test_killed_three_times_at_another_zero_stage(cached, unbroken: tuple[Artifact, float]) -> None:
    """ZeRO-1 restores its own partitioned fp32 copy of the parameters and Adam's moments."""
    config = cached.config(**CHANGES)
    config.deepspeed.stage = 1
    kill_for_sure(config, unbroken, kills=3, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_killed_at_twenty_moments(cached, unbroken: tuple[Artifact, float], seed: int) -> None:
    """Ten runs, each killed twice: twenty moments spread over a run."""
    kill_for_sure(cached.config(**CHANGES), unbroken, kills=2, seed=100 + seed)


def wait_for_lines(config: Config, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for path in Path(config.artifacts).glob("draft/*/.partial-*/metrics.jsonl"):
            if len(read_lines(path)) >= count:
                return
        time.sleep(0.01)
    raise AssertionError(f"no {count} lines in a minute")


def test_sigterm_saves_a_checkpoint_at_once(cached, unbroken: tuple[Artifact, float]) -> None:
    """The step is finished, the checkpoint is of that very step, the code 128 + 15, the end as unbroken."""
    config = cached.config(**CHANGES | {"checkpoint_every": 1000})
    process = tiny_cache.Process(config)
    wait_for_lines(config, 2)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    (partial,) = Path(config.artifacts).glob("draft/*/.partial-*")
    saved = checkpoints.newest(partial / "run" / "checkpoints")
    assert saved is not None
    assert 2 <= saved.step < STEPS
    assert saved.step == read_lines(partial / "metrics.jsonl")[-1]["step"]
    assert tiny_cache.Process(config).wait() == 0
    check_equal(draft_of(config), unbroken[0])


def test_another_number_of_ranks_is_refused_before_training(cached, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pitfall 35: a checkpoint that says it was written by two ranks."""
    config = cached.config(**CHANGES)
    real = checkpoints.complete

    def by_two(folder: Path, step: int, layout: checkpoints.CheckpointLayout) -> checkpoints.Checkpoint:
        real(folder, step, checkpoints.CheckpointLayout(2, layout.stage, layout.names))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "complete", by_two)
        with pytest.raises(KeyboardInterrupt):
            loop.run_train(config, cached.store, cached.cache)
    with refused(ConfigError, "ranks=1", "ranks=2"):
        loop.run_train(config, cached.store, cached.cache)
