"""A committed cache of the tiny target, and the config of a run on it; both are made in a second."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import socket
import sys
import unittest.mock
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline import config as schema
from pipeline.drafts.algorithms import ALGORITHMS
from pipeline.ranks import free_port
from pipeline.store.artifacts import Artifact, Store
from pipeline.target.files import identity, template_identity
from pipeline.target.model import Target

TAPS = [0, 2]


def target_config(folder: Path) -> schema.TargetConfig:
    """The tiny target in fp32 on the CPU."""
    return schema.TargetConfig(
        name="tiny", path=str(folder), dtype="float32", device="cpu", num_taps=2, taps=TAPS
    )


def samples(target: Target, lengths: Sequence[int], heldout: int, seed: int = 0) -> list[Any]:
    """Samples with 4 prompt tokens each; the last ``heldout`` of them are held out."""
    from pipeline.states.samples import Sample

    generator = torch.Generator().manual_seed(seed)
    made = []
    for i, length in enumerate(lengths):
        ids = torch.randint(0, 256, (length,), generator=generator)
        states = target.run(ids[None])
        split = "heldout" if i >= len(lengths) - heldout else "train"
        hidden, last = states.hidden[0].clone(), states.last_hidden[0].clone()
        made.append(Sample(ids, torch.arange(length) >= 4, hidden, last, split, f"{i:064x}:0"))
    return made


def make(
    store: Store, folder: Path, lengths: Sequence[int], heldout: int = 0, name: str = "tiny_chat"
) -> Artifact:
    """Commit a cache whose samples have ``lengths`` tokens, in segments of two samples."""
    from data_specs.target_cache import SCHEMA_VERSION, CacheSpec
    from pipeline.states.index import write_index
    from pipeline.states.writer import write_segment

    target = Target.load(target_config(folder), TAPS)
    spec = CacheSpec(TAPS, target.hidden_size, target.vocab_size, "float32", chunk_tokens=16, shard_tokens=64)
    settings = {"target": {"identity": identity(folder), "dtype": "float32", "taps": TAPS}}
    settings["target"] |= template_identity(folder, target_config(folder))
    work = store.begin("cache", name, SCHEMA_VERSION, f"print-of-{name}-{list(lengths)}", {}, settings)
    made = samples(target, lengths, heldout)
    segments = [made[i : i + 2] for i in range(0, len(made), 2)]
    for number, segment in enumerate(segments):
        write_segment(work.path, number, segment, spec)
    sealed = {
        k: getattr(work, k) for k in ("kind", "name", "schema_version", "fingerprint", "parents", "config")
    }
    return store.commit(work, write_index(work.path, spec, len(segments), sealed | {"counts": {}}))


# The smallest drafters: blocks of 3, one layer.
DRAFTERS: dict[str, dict[str, Any]] = {
    "dspark": {"markov_rank": 4},
    "dflash": {"block_size": 4, "sample_from_anchor": False, "loss": schema.LossConfig(1.0, 0.0, 0.0)},
    "eagle3": {"vocab_size": 40, "loss": schema.LossConfig(0.0, 0.0, 0.0, soft=1.0)},
    "mtp": {"num_taps": 0, "train_steps": 1, "loss": schema.LossConfig(1.0, 0.0, 0.0)},
}


def drafter_config(algorithm: str) -> schema.DrafterConfig:
    """The config of one of ``DRAFTERS``, with the algorithm's name."""
    values = {"block_size": 3, "depth": 1} | ALGORITHMS[algorithm].fixed | DRAFTERS[algorithm]
    return schema.DrafterConfig(name=algorithm, algorithm=algorithm, **values)


def train_config(folder: Path, artifacts: Path, algorithm: str = "dspark", **changes: Any) -> schema.Config:
    """A few steps in fp32 without workers, tracking or warm-up; ``changes`` are those of ``train``."""
    train: dict[str, Any] = {
        "steps": 6, "global_batch": 2, "micro_batch": 1, "anchors": 4, "lr": 1e-3, "warmup": 0.0,
        "dtype": "fp32", "checkpoint_every": 2, "evaluate_every": 3, "heldout_samples": 2, "workers": 0,
    }  # fmt: skip
    return schema.Config(
        stage=schema.StageConfig("train", ["train"]),
        target=target_config(folder),
        data=schema.DataConfig(name="chat"),
        answers=schema.AnswersConfig(source="given"),
        drafter=drafter_config(algorithm),
        train=schema.TrainConfig(**(train | changes)),
        deepspeed=schema.DeepSpeedConfig(stage=0),
        tracking=schema.TrackingConfig(mode="none"),
        artifacts=str(artifacts),
    )


def overrides(config: schema.Config) -> list[str]:
    """The command-line overrides of ``python -m pipeline`` that compose ``config`` (of ``train_config``)."""
    train = [
        f"train.{key}={value}"
        for key, value in vars(config.train).items()
        if value is not None and key != "betas"
    ]
    return [
        "stage=train", "target=hf", "target.name=tiny", f"target.path={config.target.path}",
        "target.dtype=float32", "target.device=cpu", f"target.taps=[{TAPS[0]},{TAPS[1]}]",
        "target.num_taps=2", "drafter=dspark", "drafter.block_size=3", "drafter.depth=1",
        "drafter.markov_rank=4", "train.epochs=null", *train, f"deepspeed=zero{config.deepspeed.stage}",
        "tracking=none", f"artifacts={config.artifacts}", "cache=tiny_chat",
        f"hydra.run.dir={config.artifacts}/hydra",
    ]  # fmt: skip


def run(config: schema.Config, environment: dict[str, str]) -> None:
    """Train as ``python -m pipeline`` would (in a process of its own; see ``Process``).

    ``environment`` may name the host (TINY_HOST) and the seconds of a lease (TINY_LEASE).
    """
    from pipeline.store import lease
    from stages.train import loop

    os.environ.update(environment)
    if host := environment.get("TINY_HOST"):
        socket.gethostname = lambda: host
    lease.LEASE_SECONDS = float(environment.get("TINY_LEASE", lease.LEASE_SECONDS))
    torch.set_num_threads(1)  # two ranks with two threads each are 30 times slower
    loop.record.plot = lambda _, path: (
        path.touch()
    )  # a plot would take half of such a run; test_record.py tests it
    store = Store(config.artifacts)
    loop.run_train(config, store, store.resolve("cache", "tiny_chat"))


def fork_server() -> Any:
    """The context that forks processes from one that has imported everything. It starts in the background."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tiny_preload"])
    # The fork server starts once and finds the modules that it preloads by PYTHONPATH.
    with unittest.mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        multiprocessing.forkserver.ensure_running()
    return context


class Process:
    """A run in a process that starts in milliseconds once the fork server is ready."""

    def __init__(self, config: schema.Config, **environment: str) -> None:
        self.process = fork_server().Process(target=run, args=(config, environment))
        self.process.start()
        assert self.process.pid is not None
        self.pid: int = self.process.pid

    def wait(self) -> int:
        """The exit code of the process; a negative one is the signal that killed it."""
        self.process.join(timeout=240)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
        assert code is not None, "the run did not end"
        return code


def ranks_of(config: schema.Config, count: int) -> list[Process]:
    """``count`` ranks of one run, started as a launcher would."""
    port = free_port()
    return [
        Process(
            config,
            RANK=str(rank),
            WORLD_SIZE=str(count),
            LOCAL_RANK=str(rank),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
        )
        for rank in range(count)
    ]
