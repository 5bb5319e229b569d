"""The samples of each step, their division among ranks, and background workers that read them ahead.

Step s takes positions [s * global_batch, (s+1) * global_batch) of an endless stream, which consists of a seeded
permutation of the training samples for each epoch. The step's number alone decides which samples it takes, so a
resumed run has nothing else to restore (pitfall 34). The samples of a step are sorted by length and dealt out, so that
ranks and micro-batches have similar sizes. Every rank makes the same number of micro-batches; a rank without samples
makes fillers, whose slots have weight 0 (pitfall 30).
"""

from __future__ import annotations

import functools
import itertools
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pipeline.drafts.base import Batch, Blocks, Supervision, supervise
from pipeline.states.reader import CacheReader
from pipeline.states.samples import TORCH_DTYPES
from stages.train.anchors import HELDOUT, TRAIN, legal_anchors, sample_anchors, stack

FILLER = -1  # sample number of a filler
COINS = 2  # last part of the key for draws of confidence labels


@dataclass(frozen=True)
class Recipe:
    """How a sample is divided into at most ``anchors`` blocks; registry.Supervised describes their supervision.

    With ``coins``, the confidence head learns sampled labels. ``taps`` are the indices of the cache's taps that the
    draft reads (None: all).
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
        """The columns of tapped states [S, taps*H] that the draft reads."""
        if self.taps is None:
            return hidden
        return hidden.unflatten(-1, (taps, -1))[:, list(self.taps)].flatten(-2)


@dataclass(frozen=True)
class Sharing:
    """Sequences per step over all ranks (``global_batch``) and per forward pass of a rank (``micro_batch``)."""

    seed: int
    global_batch: int
    micro_batch: int
    world_size: int

    @property
    def micro_steps(self) -> int:
        """Forward passes per step of each rank."""
        return -(-self.global_batch // (self.micro_batch * self.world_size))


@dataclass(frozen=True)
class Micro:
    """The input of one forward pass.

    In a step's first micro-batch, ``step_weight`` is the sum of all slot weights of this rank in this step; in the
    others it is 0. It is known before the forward pass, so that the loss can be divided by the global sum.
    """

    batch: Batch
    blocks: Blocks
    supervision: Supervision
    step_weight: float = 0.0

    def to(self, device: torch.device | str) -> Micro:
        """The same micro-batch on ``device``."""
        return self._map(lambda x: x.to(device, non_blocking=True))

    def pin_memory(self) -> Micro:
        """The same micro-batch in page-locked memory. torch's DataLoader calls this."""
        return self._map(Tensor.pin_memory)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Micro:
        def changed(part: Any) -> Any:
            return replace(part, **{name: change(x) for name, x in vars(part).items() if x is not None})

        return Micro(changed(self.batch), changed(self.blocks), changed(self.supervision), self.step_weight)


@functools.lru_cache(maxsize=2)
def epoch_order(samples: int, seed: int, epoch: int) -> np.ndarray:
    """The permutation of 0 .. samples-1 in epoch ``epoch``."""
    return np.random.default_rng([seed, epoch]).permutation(samples)


def step_positions(samples: int, sharing: Sharing, step: int) -> np.ndarray:
    """Stream positions (0 to ``samples`` - 1) of the samples in step ``step``, int64 [global_batch]."""
    stream = np.arange(step * sharing.global_batch, (step + 1) * sharing.global_batch)
    places = [divmod(position, samples) for position in stream.tolist()]
    return np.array([epoch_order(samples, sharing.seed, epoch)[place] for epoch, place in places])


def deal(lengths: np.ndarray, sharing: Sharing, steps: int) -> list[list[np.ndarray]]:
    """Places in ``lengths`` for each of ``steps`` micro-batches and each rank, longest samples first."""
    order = np.lexsort((np.arange(len(lengths)), -lengths))
    width = sharing.micro_batch * sharing.world_size
    rows = [order[i * width : (i + 1) * width] for i in range(steps)]
    return [[row[rank :: sharing.world_size] for rank in range(sharing.world_size)] for row in rows]


def collate(samples: Sequence[Any], numbers: Sequence[int], columns: Callable[[Tensor], Tensor]) -> Batch:
    """A batch of cached samples (``CacheReader.read``) with these numbers in the cache, padded on the right.

    ``columns`` selects those columns of tapped states [S, m*H] that the draft reads.
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


class Samples:
    """The samples of one split of a cache, and micro-batches of them."""

    def __init__(self, folder: Path, split: str, recipe: Recipe) -> None:
        self.folder, self.split, self.recipe = folder, split, recipe
        self.reader = CacheReader(folder)
        self.numbers = np.flatnonzero(np.asarray(self.reader.splits) == split)
        self.lengths = np.asarray(self.reader.lengths)[self.numbers]

    def __reduce__(self) -> tuple[Any, ...]:
        """Make a worker open the cache itself, because a reader cannot be used in two processes (pitfall 23)."""
        return Samples, (self.folder, self.split, self.recipe)

    def anchors(self, number: int, step: int | None) -> Tensor:
        """Anchors of sample ``number`` in ``step``; with None, those of every held-out evaluation."""
        return self._draw(self.reader.read_ids(number)[1], number, step)

    def micro(self, numbers: Sequence[int], step: int | None) -> Micro:
        """A micro-batch of the samples ``numbers`` (a filler if there are none)."""
        samples = [self.reader.read(number) for number in numbers]
        rows = [self._draw(sample.loss_mask, n, step) for sample, n in zip(samples, numbers, strict=True)]
        if not any(len(row) for row in rows):
            return self.filler()
        columns = functools.partial(self.recipe.columns, taps=len(self.reader.spec.taps))
        batch, blocks = collate(samples, numbers, columns), stack(rows)
        supervision = self.recipe.supervise(batch, blocks)
        if self.recipe.coins:
            supervision = replace(supervision, coins=self._coins(supervision, numbers, step))
        return Micro(batch, blocks, supervision)

    def _coins(self, supervision: Supervision, numbers: Sequence[int], step: int | None) -> Tensor:
        """Uniform draws fp32 [B, A, G] that depend only on the seed, the sample and the step."""
        key = (self.recipe.seed, *((HELDOUT,) if step is None else (TRAIN, step)))
        shape = supervision.mask.shape[1:]
        rows = [np.random.default_rng([*key, int(n), COINS]).random(shape, dtype=np.float32) for n in numbers]
        return torch.from_numpy(np.stack(rows))

    def filler(self) -> Micro:
        """One block whose slots have weight 0, with the shapes of this cache.

        It passes through the whole draft, so that a rank without samples takes part in every collective, including
        ZeRO-3's gathering of parameters.
        """
        spec, recipe = self.reader.spec, self.recipe
        taps = len(spec.taps if recipe.taps is None else recipe.taps)
        dtype = TORCH_DTYPES[spec.dtype]
        batch = Batch(
            input_ids=torch.zeros(1, 3, dtype=torch.int64),
            loss_mask=torch.tensor([[False, False, True]]),
            lengths=torch.tensor([3]),
            hidden=torch.zeros(1, 3, taps * spec.hidden_size, dtype=dtype),
            last_hidden=torch.zeros(1, 3, spec.hidden_size, dtype=dtype),
            samples=torch.tensor([FILLER]),
        )
        blocks = stack([torch.tensor([1])])
        supervision = recipe.supervise(batch, blocks)
        zeros = torch.zeros_like(supervision.weights)
        coins = zeros if recipe.coins else None
        return Micro(batch, blocks, replace(supervision, weights=zeros, coins=coins))

    def weight(self, numbers: Sequence[int], step: int | None) -> float:
        """The sum of the slot weights of the samples ``numbers``. Only their masks are read."""
        total = 0.0
        for number in numbers:
            ids, mask = self.reader.read_ids(number)
            none = torch.zeros(1, len(mask), 0)
            batch = Batch(
                ids[None], mask[None], torch.tensor([len(mask)]), none, none, torch.tensor([number])
            )
            blocks = stack([self._draw(mask, number, step)])
            total += float(self.recipe.supervise(batch, blocks).weights.double().sum())
        return total

    def _draw(self, mask: Tensor, number: int, step: int | None) -> Tensor:
        key = (HELDOUT,) if step is None else (TRAIN, step)
        return sample_anchors(mask, self.recipe.anchors, (self.recipe.seed, *key, int(number)))


class StepShares(Dataset[Micro]):
    """This rank's micro-batches of the whole run. Micro-batch j of a step is item ``step * micro_steps + j``."""

    def __init__(self, samples: Samples, sharing: Sharing, rank: int) -> None:
        self.samples, self.sharing, self.rank = samples, sharing, rank

    def step_numbers(self, step: int) -> np.ndarray:
        """Cache numbers of the samples of ``step`` on all ranks, in stream order."""
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
        return replace(self.samples.micro(shares[j], step), step_weight=weight)


@contextmanager
def read_ahead(
    shares: StepShares, first: int, total: int, workers: int, pin: bool
) -> Iterator[Iterator[Micro]]:
    """Micro-batches of steps ``first`` to ``total`` - 1 in order. ``workers`` processes read them (0: this process).

    The processes end with the block. Otherwise they would continue after an exception, whose traceback keeps the
    iterator alive; and because they ignore SIGTERM, Python would never end.
    """
    micro_steps = shares.sharing.micro_steps
    loader = DataLoader(
        shares,
        batch_size=None,
        sampler=range(first * micro_steps, total * micro_steps),
        num_workers=workers,
        pin_memory=pin,
        worker_init_fn=_ignore_signals if workers else None,
        # A forked worker deadlocks if codecs ran in the parent before (pitfall 23).
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


def _ignore_signals(_: int) -> None:
    """Ignore signals to the whole process group: the parent handles them and needs its workers to finish the step."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def heldout_numbers(samples: Samples, count: int) -> list[int]:
    """Cache numbers of the held-out samples that every evaluation uses: a seeded choice of at most ``count``.

    Samples without a legal anchor are left out.
    """
    order = np.random.default_rng([samples.recipe.seed, HELDOUT]).permutation(samples.numbers)
    useful = (int(n) for n in order if len(legal_anchors(samples.reader.read_ids(int(n))[1])))
    return sorted(itertools.islice(useful, count))


def heldout_micros(samples: Samples, numbers: Sequence[int], sharing: Sharing, rank: int) -> Iterator[Micro]:
    """This rank's micro-batches of the held-out samples ``numbers``. Every rank makes the same number."""
    lengths = np.asarray(samples.reader.lengths)[np.asarray(numbers, dtype=np.int64)]
    width = sharing.micro_batch * sharing.world_size
    for micro in deal(lengths, sharing, -(-len(numbers) // width)):
        yield samples.micro([numbers[place] for place in micro[rank]], None)
