"""Which samples a step takes, how ranks share them, and how they are read ahead by background workers.

Step s takes positions [s * global_batch, (s+1) * global_batch) of an endless stream: one seeded permutation
of the training samples an epoch, one after the other. All of it follows from the step's number, so a run that
resumes at step s has nothing else to restore (pitfall 34). A step's samples are sorted by length and dealt
out, so that ranks and micro-batches are alike in size; every rank makes the same number of micro-batches, and
one that has no samples left makes a filler whose slots weigh nothing (pitfall 30).
"""

from __future__ import annotations

import dataclasses
import functools
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pipeline.drafts.base import Batch, Blocks, Supervision, supervise
from pipeline.states.reader import CacheReader
from stages.train.anchors import HELDOUT, TRAIN, legal_anchors, sample_anchors, stack

FILLER = -1  # sample number of a filler
COINS = 2  # last part of a key: draws of confidence labels


@dataclass(frozen=True)
class Recipe:
    """How blocks are made from a sample: at most ``anchors`` of them, each supervised as registry.Supervised says.

    ``coins`` says whether the confidence head learns from sampled labels. ``taps`` are the indices of the cache's
    taps that the draft reads (None: all).
    """

    seed: int
    anchors: int
    drafts: int
    decay: float
    trained: int | None = None
    coins: bool = False
    taps: tuple[int, ...] | None = None

    def supervise(self, batch: Batch, blocks: Blocks) -> Supervision:
        """See pipeline/drafts/base.py."""
        return supervise(batch, blocks, self.drafts, self.decay, self.trained)

    def columns(self, hidden: Tensor, taps: int) -> Tensor:
        """The columns that the draft reads, out of tapped states [S, taps*H]."""
        if self.taps is None:
            return hidden
        return hidden.unflatten(-1, (taps, -1))[:, list(self.taps)].flatten(-2)


@dataclass(frozen=True)
class Sharing:
    """How samples are shared: ``global_batch`` a step over all ranks, ``micro_batch`` a forward pass."""

    seed: int
    global_batch: int
    micro_batch: int
    world_size: int

    @property
    def micro_steps(self) -> int:
        """Forward passes of each rank a step."""
        return -(-self.global_batch // (self.micro_batch * self.world_size))


@dataclass(frozen=True)
class Micro:
    """What one forward pass takes.

    ``step_weight`` is the sum of the slot weights of everything that this rank takes in this step. It stands in the
    step's first micro-batch (0 in the others) and is known before the forward pass, so that the loss can be divided
    by the global sum.
    """

    batch: Batch
    blocks: Blocks
    supervision: Supervision
    step_weight: float

    def to(self, device: torch.device | str) -> Micro:
        """The same on ``device``."""
        return self._map(lambda x: x.to(device, non_blocking=True))

    def pin_memory(self) -> Micro:
        """The same in page-locked memory; called by torch's DataLoader."""
        return self._map(Tensor.pin_memory)

    def _map(self, change: Any) -> Micro:
        batch, blocks, supervision = (
            _map_tensors(part, change) for part in (self.batch, self.blocks, self.supervision)
        )
        return Micro(batch, blocks, supervision, self.step_weight)


def _map_tensors(part: Any, change: Any) -> Any:
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    return type(part)(**{name: None if value is None else change(value) for name, value in values.items()})


@functools.lru_cache(maxsize=2)
def epoch_order(samples: int, seed: int, epoch: int) -> np.ndarray:
    """Permutation of 0 .. samples-1 in epoch ``epoch``."""
    return np.random.default_rng([seed, epoch]).permutation(samples)


def step_positions(samples: int, sharing: Sharing, step: int) -> np.ndarray:
    """Stream positions (0 to ``samples`` - 1) of the samples in step ``step``, int64 [global_batch]."""
    stream = np.arange(step * sharing.global_batch, (step + 1) * sharing.global_batch)
    epochs, places = np.divmod(stream, samples)
    return np.array(
        [epoch_order(samples, sharing.seed, int(e))[p] for e, p in zip(epochs, places, strict=True)]
    )


def deal(lengths: np.ndarray, sharing: Sharing, steps: int) -> list[list[np.ndarray]]:
    """Places in ``lengths`` for each of ``steps`` micro-batches and each rank; longest first."""
    order = np.lexsort((np.arange(len(lengths)), -lengths))
    width = sharing.micro_batch * sharing.world_size
    rows = [order[i * width : (i + 1) * width] for i in range(steps)]
    return [[row[rank :: sharing.world_size] for rank in range(sharing.world_size)] for row in rows]


def collate(samples: Sequence[Any], numbers: Sequence[int], columns: Callable[[Tensor], Tensor]) -> Batch:
    """Cached samples (``CacheReader.read``) and their numbers in the cache, padded on the right.

    ``columns`` picks those of the tapped states [S, m*H] that the draft reads.
    """
    pad = functools.partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    return Batch(
        input_ids=pad([s.input_ids for s in samples]),
        loss_mask=pad([s.loss_mask for s in samples]),
        lengths=torch.tensor([len(s.input_ids) for s in samples]),
        hidden=pad([columns(s.hidden) for s in samples]),
        last_hidden=pad([s.last_hidden for s in samples]),
        samples=torch.tensor(numbers, dtype=torch.int64),
    )


def filler(width: int, hidden_size: int, dtype: torch.dtype, recipe: Recipe) -> Micro:
    """A forward pass over one block whose slots weigh nothing; ``width``: of the tapped states (m*H).

    It goes through the whole draft, so a rank without samples takes part in every collective, also in
    ZeRO-3's gathering of parameters.
    """
    batch = Batch(
        input_ids=torch.zeros(1, 3, dtype=torch.int64),
        loss_mask=torch.tensor([[False, False, True]]),
        lengths=torch.tensor([3]),
        hidden=torch.zeros(1, 3, width, dtype=dtype),
        last_hidden=torch.zeros(1, 3, hidden_size, dtype=dtype),
        samples=torch.tensor([FILLER]),
    )
    blocks = stack([torch.tensor([1])])
    supervision = recipe.supervise(batch, blocks)
    nothing = torch.zeros_like(supervision.weights)
    coins = nothing if recipe.coins else None
    return Micro(batch, blocks, Supervision(supervision.labels, supervision.mask, nothing, coins), 0.0)


class Samples:
    """Samples of one split of a cache, and micro-batches of them."""

    def __init__(self, folder: Path, split: str, recipe: Recipe) -> None:
        self.folder, self.split, self.recipe = folder, split, recipe
        self.reader = CacheReader(folder)
        self.numbers = np.flatnonzero(np.asarray(self.reader.splits) == split)
        self.lengths = np.asarray(self.reader.lengths)[self.numbers]

    def __reduce__(self) -> tuple[Any, ...]:
        """Make a worker open the cache itself, because a reader cannot be used in two processes (pitfall 23)."""
        return Samples, (self.folder, self.split, self.recipe)

    def anchors(self, number: int, step: int | None) -> Tensor:
        """Anchors of sample ``number`` in ``step``; None: those of every held-out evaluation."""
        return self._draw(self.reader.read_ids(number)[1], number, step)

    def micro(self, numbers: Sequence[int], step: int | None, step_weight: float = 0.0) -> Micro:
        """A micro-batch of the samples ``numbers`` (a filler if there are none)."""
        samples = [self.reader.read(number) for number in numbers]
        rows = [self._draw(sample.loss_mask, n, step) for sample, n in zip(samples, numbers, strict=True)]
        if not any(len(row) for row in rows):
            return self.filler()
        batch, blocks = collate(samples, numbers, self._columns), stack(rows)
        supervision = self.recipe.supervise(batch, blocks)
        if self.recipe.coins:
            supervision = dataclasses.replace(supervision, coins=self._coins(supervision, numbers, step))
        return Micro(batch, blocks, supervision, step_weight)

    def _columns(self, hidden: Tensor) -> Tensor:
        return self.recipe.columns(hidden, len(self.reader.spec.taps))

    def _coins(self, supervision: Supervision, numbers: Sequence[int], step: int | None) -> Tensor:
        """Uniform draws fp32 [B, A, G]; they depend only on the seed, the sample and the step."""
        key = (self.recipe.seed, *((HELDOUT,) if step is None else (TRAIN, step)))
        shape = supervision.mask.shape[1:]
        rows = [np.random.default_rng([*key, int(n), COINS]).random(shape, dtype=np.float32) for n in numbers]
        return torch.from_numpy(np.stack(rows))

    def filler(self) -> Micro:
        """A filler (see the function ``filler``) with the shapes of this cache."""
        spec = self.reader.spec
        dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[spec.dtype]
        taps = len(spec.taps if self.recipe.taps is None else self.recipe.taps)
        return filler(taps * spec.hidden_size, spec.hidden_size, dtype, self.recipe)

    def weight(self, numbers: Sequence[int], step: int | None) -> float:
        """Sum of the slot weights of the samples ``numbers``; reads their masks only."""
        return sum(self._weight(self.reader.read_ids(number)[1], number, step) for number in numbers)

    def _draw(self, mask: Tensor, number: int, step: int | None) -> Tensor:
        key = (HELDOUT,) if step is None else (TRAIN, step)
        return sample_anchors(mask, self.recipe.anchors, (self.recipe.seed, *key, int(number)))

    def _weight(self, mask: Tensor, number: int, step: int | None) -> float:
        blocks = stack([self._draw(mask, number, step)])
        nothing = torch.zeros(1, len(mask), 0)
        batch = Batch(
            torch.zeros(1, len(mask), dtype=torch.int64), mask[None], torch.tensor([len(mask)]),
            nothing, nothing, torch.tensor([number]),
        )  # fmt: skip
        return float(self.recipe.supervise(batch, blocks).weights.double().sum())


class StepShares(Dataset[Micro]):
    """This rank's micro-batches of the whole run: item ``step * micro_steps + j``."""

    def __init__(self, samples: Samples, sharing: Sharing, rank: int) -> None:
        self.samples, self.sharing, self.rank = samples, sharing, rank

    def step_numbers(self, step: int) -> np.ndarray:
        """Cache numbers of all samples that ``step`` takes over all ranks, in stream order."""
        return self.samples.numbers[step_positions(len(self.samples.numbers), self.sharing, step)]

    def shares(self, step: int) -> list[list[int]]:
        """Cache numbers of the samples in each of this rank's micro-batches of ``step``."""
        places = step_positions(len(self.samples.numbers), self.sharing, step)
        dealt = deal(self.samples.lengths[places], self.sharing, self.sharing.micro_steps)
        return [self.samples.numbers[places[micro[self.rank]]].tolist() for micro in dealt]

    def __getitem__(self, item: int) -> Micro:
        step, j = divmod(item, self.sharing.micro_steps)
        shares = self.shares(step)
        weight = sum(self.samples.weight(share, step) for share in shares) if j == 0 else 0.0
        micro = self.samples.micro(shares[j], step)
        return Micro(micro.batch, micro.blocks, micro.supervision, weight)


@contextmanager
def read_ahead(
    shares: StepShares, first: int, total: int, workers: int, pin: bool
) -> Iterator[Iterator[Micro]]:
    """Micro-batches of steps ``first`` to ``total`` - 1 in order, read by ``workers`` processes (0: by this one).

    The processes end with the block. Without it they would go on after an exception, whose traceback keeps the iterator
    alive, and because they ignore SIGTERM, Python would wait for them for ever when it ends.
    """
    micro_steps = shares.sharing.micro_steps
    loader = DataLoader(
        shares,
        batch_size=None,
        sampler=range(first * micro_steps, total * micro_steps),
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=pin,
        worker_init_fn=_ignore_signals if workers else None,
        # A forked worker deadlocks where codecs ran in the parent before (pitfall 23).
        multiprocessing_context="spawn" if workers else None,
        prefetch_factor=2 if workers else None,
    )
    stream = iter(loader)
    try:
        yield stream
    finally:
        if workers:
            readers: list[BaseProcess] = stream._workers  # type: ignore[attr-defined]  # torch has no public way
            stream._shutdown_workers()  # type: ignore[attr-defined]
            for reader in readers:
                reader.kill()  # does nothing to those that have ended


def _as_it_is(micro: Any) -> Any:
    return micro


def _ignore_signals(_: int) -> None:
    """Leave a signal that is sent to the whole group to the parent, which needs its workers to finish the step."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def heldout_numbers(samples: Samples, count: int) -> list[int]:
    """Cache numbers of the held-out samples that every evaluation uses: a seeded choice of at most ``count``.

    Samples without a legal anchor are left out.
    """
    order = np.random.default_rng([samples.recipe.seed, HELDOUT]).permutation(samples.numbers)
    useful = (int(n) for n in order if len(legal_anchors(samples.reader.read_ids(int(n))[1])))
    return sorted(number for _, number in zip(range(count), useful, strict=False))


def heldout_micros(samples: Samples, numbers: Sequence[int], sharing: Sharing, rank: int) -> Iterator[Micro]:
    """This rank's micro-batches of the held-out samples ``numbers``; every rank makes as many."""
    lengths = np.asarray(samples.reader.lengths)[np.asarray(numbers, dtype=np.int64)]
    width = sharing.micro_batch * sharing.world_size
    for micro in deal(lengths, sharing, -(-len(numbers) // width)):
        yield samples.micro([numbers[place] for place in micro[rank]], None)


__all__ = [
    "Blocks",
    "Micro",
    "Recipe",
    "Samples",
    "Sharing",
    "StepShares",
    "heldout_micros",
    "heldout_numbers",
    "read_ahead",
]
