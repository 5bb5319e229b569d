"""The parts of a run, prepared before the training, and the plan that ``plan=true`` prints."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from data_specs.draft import WEIGHTS
from data_specs.files import free_bytes
from data_specs.manifest import file_record
from pipeline import console, ranks
from pipeline.config import Config, ConfigError, InitConfig, section
from pipeline.drafts.folders import checkpoint
from pipeline.drafts.model import Model
from pipeline.drafts.planned import check_draft, mask_token
from pipeline.drafts.registry import Start, build, chosen_taps, supervised
from pipeline.states.reader import CacheReader
from pipeline.store.artifacts import Artifact, Store
from pipeline.target.files import check_template, identity
from pipeline.target.location import locate
from pipeline.target.tensors import TargetTensors, load_layers, load_tensors
from stages.train.batches import Recipe, Samples, Sharing, StepShares, heldout_numbers
from stages.train.schedule import chosen, total_steps

# Keys of ``train`` that do not change the result.
NEUTRAL = ("micro_batch", "workers", "verify", "attention", "compile", "checkpoint_every", "keep_checkpoints")
USED_SHARE = 0.4  # Estimates assume that a step reaches this share of the speed of matrix products.


class Setup:
    """The parts of a run. Each is made on first use.

    ``config`` is the run's config with all open values chosen. Raises ``ConfigError`` if it does not fit the cache.
    """

    def __init__(self, config: Config, cache: Artifact) -> None:
        self.cache = cache
        self.folder = locate(config.target)
        drafter, train = config.drafter, config.train
        cached = CacheReader(cache.path).spec.taps
        self.taps = chosen_taps(drafter, cached)
        self.layers = [cached[i] for i in self.taps]
        how = supervised(drafter)
        self.recipe = Recipe(
            config.seed, train.anchors, how.drafts, how.decay, how.trained, drafter.confidence_label == "sampled",
            None if len(self.taps) == len(cached) else tuple(self.taps),
        )  # fmt: skip
        self.samples = Samples(cache.path, "train", self.recipe)
        if not len(self.samples.numbers):
            raise ConfigError(f"cache={cache.reference}: holds no samples of the split train")
        train = chosen(train, len(self.samples.numbers))
        self.config = dataclasses.replace(config, train=train)
        assert train.global_batch is not None, "chosen"
        self.sharing = Sharing(config.seed, train.global_batch, train.micro_batch, ranks.world_size())
        self.steps = total_steps(train, len(self.samples.numbers))
        self.shares = StepShares(self.samples, self.sharing, ranks.rank())
        counts = self.samples.reader.token_counts
        self.mask_token_id = mask_token(config, self.folder, len(counts))
        if self.mask_token_id is not None and counts[self.mask_token_id]:  # pitfall 26
            raise ConfigError(
                f"target.mask_token_id={self.mask_token_id}: occurs {counts[self.mask_token_id]} times in the cache; "
                "the mask must be a token that no text contains"
            )

    @property
    def passes(self) -> float:
        """How often the run sees each sample."""
        return self.steps * self.sharing.global_batch / len(self.samples.numbers)

    @functools.cached_property
    def identity(self) -> str:
        """The identity of the target's files."""
        return identity(self.folder)

    @functools.cached_property
    def tensors(self) -> TargetTensors:
        """The tensors that the draft takes from the target."""
        return load_tensors(self.config.target)

    @functools.cached_property
    def draft(self) -> Model:
        """The new draft, which is the same on every rank."""
        check_draft(self.config, len(self.tensors.embedding))
        start = Start(self._layers(), self._pairs(), self._other_draft(), self._vocabulary())
        torch.manual_seed(self.config.seed)
        draft = build(self.config.drafter, self.tensors, self.layers, self.mask_token_id, start)
        draft.attention = None if self.config.train.attention == "auto" else self.config.train.attention
        if self.config.train.compile:
            draft.compile(dynamic=True)
        return draft

    def _layers(self) -> dict[int, dict[str, torch.Tensor]]:
        """Raw weights of the target's last layers, if the draft starts from them."""
        if not self.config.drafter.init.layers:
            return {}
        depth = self.tensors.config.num_hidden_layers
        return load_layers(self.config.target, list(range(max(0, depth - self.config.drafter.depth), depth)))

    def _pairs(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Neighbouring tokens (previous, answer) of the training samples, int64 [n] each; None without bigrams."""
        if self.config.drafter.init.bigram is None:
            return None
        pairs = []
        for number in self.samples.numbers:
            ids, mask = self.samples.reader.read_ids(int(number))
            pairs.append(torch.stack([ids[:-1], ids[1:]])[:, mask[1:]])
        previous, following = torch.cat(pairs, 1)
        return previous, following

    def _other_draft(self) -> dict[str, torch.Tensor]:
        """Tensors of the draft that this one starts from. Raises ``ConfigError`` as ``check_start`` does."""
        source = self.config.drafter.init.draft
        if source is None:
            return {}
        check_start(Path(source), self.layers, self.config.drafter.sample_from_anchor)
        return checkpoint.read_tensors(Path(source))

    def _vocabulary(self) -> torch.Tensor | None:
        """The reduced draft vocabulary: the ids of the cache's most frequent answer tokens, ascending."""
        size = self.config.drafter.vocab_size
        if size is None:
            return None
        counts = torch.zeros(len(self.tensors.embedding), dtype=torch.int64)
        for number in self.samples.numbers:
            ids, mask = self.samples.reader.read_ids(int(number))
            counts += torch.bincount(ids[mask], minlength=len(counts))
        return counts.argsort(descending=True, stable=True)[:size].sort().values

    @functools.cached_property
    def heldout_samples(self) -> Samples:
        """The cache's held-out split."""
        return Samples(self.cache.path, "heldout", self.recipe)

    @functools.cached_property
    def heldout(self) -> list[int]:
        """Cache numbers of the held-out samples that every evaluation uses."""
        return heldout_numbers(self.heldout_samples, self.config.train.heldout_samples)

    @property
    def inputs(self) -> dict[str, Any]:
        """Everything that the result depends on, for the fingerprint."""
        drafter, train = section(self.config.drafter), section(self.config.train)
        del drafter["loss"]["chunk_slots"]
        # Drafts that were trained before this key existed keep their fingerprint.
        if drafter["rope_scaling"] is None:
            del drafter["rope_scaling"]
        source = self.config.drafter.init.draft
        if source is not None:  # its contents count, not its path
            drafter["init"]["draft"] = file_record(Path(source) / WEIGHTS).sha256
        return {
            "cache": self.cache.manifest.fingerprint,
            "target": self.identity,
            "mask_token_id": self.mask_token_id,
            "drafter": drafter,
            "train": {key: value for key, value in train.items() if key not in NEUTRAL},
            "deepspeed": section(self.config.deepspeed)["extra"],
            "seed": self.config.seed,
        }

    @functools.cached_property
    def parameters(self) -> int:
        """Parameters of the draft, frozen ones included."""
        return sum(p.numel() for p in self.draft.parameters())

    @functools.cached_property
    def trainable(self) -> int:
        """Parameters that are trained."""
        return sum(p.numel() for p in self.draft.trainable_parameters())

    @property
    def save_dtype(self) -> torch.dtype:
        """The type of trained tensors in draft folders: the target's after a run in bf16, else fp32."""
        return self.tensors.embedding.dtype if self.config.train.dtype == "bf16" else torch.float32


def check_start(folder: Path, taps: list[int], sample_from_anchor: bool) -> None:
    """Raise ``ConfigError`` with the field if the draft in ``folder`` has other taps or another anchor convention."""
    theirs = checkpoint.read_config(folder)
    for name, value in {"target_layer_ids": taps, "sample_from_anchor": sample_from_anchor}.items():
        if (got := getattr(theirs, name)) != value:
            raise ConfigError(f"drafter.init.draft={folder}: {name}: expected {value}, got {got}")


def checkpoint_bytes(trainable: int, stage: int) -> int:
    """Bytes of one checkpoint: parameters, Adam's two moments, and from stage 1 on ZeRO's own fp32 copy."""
    return 4 * (3 if stage == 0 else 4) * trainable


def with_start(config: Config, store: Store) -> Config:
    """``config`` with the folder of the draft that ``drafter.init.draft`` names; ``UserError`` if there is none."""
    source = config.drafter.init.draft
    if source is None or (Path(source) / WEIGHTS).is_file():
        return config
    folder = str(store.resolve("draft", source).path)
    init = dataclasses.replace(config.drafter.init, draft=folder)
    return dataclasses.replace(config, drafter=dataclasses.replace(config.drafter, init=init))


def prepare(config: Config, cache: Artifact) -> Setup:
    """The parts of the run of ``config`` on ``cache``. Raises ``ConfigError`` if they or the target do not fit."""
    made, target = cache.manifest.config["target"], config.target
    told = {"thinking": target.thinking, "template_kwargs": target.template_kwargs}
    check_template(made, told, f"the cache {cache.reference}")
    setup = Setup(config, cache)
    for key, had, has in (
        ("target", made["identity"], setup.identity),
        ("target.dtype", made["dtype"], target.dtype),
        ("target.taps", made["taps"], made["taps"] if target.taps is None else list(target.taps)),
    ):
        if had != has:
            raise ConfigError(f"{key}: cache {cache.reference} was made with {had}, this run has {has}")
    return setup


def target_parameters(folder: Path) -> int:
    """Parameters of the target: elements of its safetensors files (tied tensors are stored once)."""
    from safetensors import safe_open

    count = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            count += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return count


def show_size(setup: Setup) -> None:
    """Print the draft's size on rank 0. All ranks call this before ZeRO-3 partitions the parameters."""
    trainable, parameters = setup.trainable, setup.parameters
    if not ranks.is_main():
        return
    target = target_parameters(setup.folder)
    counts = {
        "trainable": trainable,
        "frozen (the target's embedding and head)": parameters - trainable,
        "draft": parameters,
        "target": target,
    }
    rows = [(name, f"{count:,}", f"{count / target:.1%}") for name, count in counts.items()]
    title = "Parameters (the paper's drafts: 5-10 % of the target)"
    console.table(title, ("", "count", "of the target"), rows)


def step_flops(setup: Setup) -> float:
    """Floating-point operations of a step: 6 per weight and slot, including the weights of the target's head."""
    embeddings = [m for m in setup.draft.modules() if isinstance(m, nn.Embedding)]
    lookups = sum(m.weight.numel() for m in embeddings if m.weight.requires_grad)
    width = setup.tensors.head.shape[1]
    supervised = setup.samples.reader.supervised[setup.samples.numbers]
    blocks = float(np.minimum(supervised, setup.recipe.anchors).mean()) * setup.sharing.global_batch
    context = float(setup.samples.lengths.mean()) * setup.sharing.global_batch
    taps = len(setup.taps)
    slots = blocks * setup.draft.trained_drafts
    rows = setup.draft.draft_vocab_size
    return slots * 6 * (setup.trainable - lookups + rows * width) + context * 6 * taps * width * width


def show_plan(setup: Setup) -> None:
    """Print the run's steps, size and estimated time on rank 0."""
    if not ranks.is_main():
        return
    train, stage = setup.config.train, setup.config.deepspeed.stage
    tokens = int(setup.samples.lengths.sum())
    # A plan is made in one process, but the run may have more.
    count = max(ranks.world_size(), ranks.wanted(setup.config.ranks))
    sharing = dataclasses.replace(setup.sharing, world_size=count)
    seconds = setup.steps * step_flops(setup) / (USED_SHARE * matmul_rate(train.dtype) * count)
    show_size(setup)
    console.table(
        "Plan of stage train",
        ("", ""),
        [
            ("cache", f"{setup.cache.reference} ({setup.cache.path})"),
            ("samples: train, held out", f"{len(setup.samples.numbers):,}, {len(setup.heldout):,}"),
            ("tokens an epoch", f"{tokens:,}"),
            ("steps x sequences a step", f"{setup.steps:,} x {setup.sharing.global_batch}"),
            ("passes over the data", f"{setup.passes:.2f}"),
            ("tokens in all", f"{int(tokens * setup.passes):,}"),
            ("ranks x passes x sequences a pass", f"{count} x {sharing.micro_steps} x {sharing.micro_batch}"),
            ("one checkpoint", console.size(checkpoint_bytes(setup.trainable, stage))),
            ("checkpoints kept", f"{max(1, train.keep_checkpoints)}"),
            ("free disk", console.size(free_bytes(setup.cache.path))),
            ("expected time", f"about {console.duration(seconds)} (estimate from FLOPs and matmul speed)"),
        ],
    )


def cost(config: Config, cache: Artifact) -> tuple[int, float, int]:
    """(steps, seconds, bytes of its drafts) of a run that is alone on the machine, estimated as in ``show_plan``.

    They do not depend on the tensors that the draft starts from, which need not exist yet.
    """
    drafter = dataclasses.replace(config.drafter, init=InitConfig())
    setup = prepare(dataclasses.replace(config, drafter=drafter), cache)
    rate = USED_SHARE * matmul_rate(config.train.dtype) * ranks.wanted(config.ranks)
    size = 2 * setup.parameters * setup.save_dtype.itemsize  # the best draft and the last
    return setup.steps, setup.steps * step_flops(setup) / rate, size


@functools.cache  # All runs of a plan use the same measurement, because the speed of a shared machine drifts.
def matmul_rate(dtype: str, size: int = 1024, seconds: float = 0.3) -> float:
    """Measured FLOP/s of square matrix products in ``dtype`` on the device that trains."""
    from stages.train.trainer import device

    where, kind = device(), torch.bfloat16 if dtype == "bf16" else torch.float32
    a = torch.randn(size, size, device=where, dtype=kind)
    count, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        b = a @ a
        count += 1
        float(b[0, 0])  # wait for the device
    return count * 2 * size**3 / (time.monotonic() - began)
