"""Compares reading random samples from the Zarr cache with a raw memory map of the same bytes.

    python benchmarks/reader.py [--samples 96] [--hidden 576] [--taps 5] [--seconds 10]

It makes random data, so ``none`` is the only codec that it measures fairly. It reads both ways in one run, the cache
with the code that training uses, and prints the samples/s of one process. Files are in the page cache. Then it trains a
draft of SmolLM2's size on the cache for a few steps (4 sequences x 32 anchors x 7 slots, two background workers) and
prints which share of the steps waits for data, as the training log does.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import train_step

from data_specs.target_cache import CODECS, CacheSpec
from pipeline.console import say, size, table
from pipeline.drafts.base import LossWeights
from pipeline.states.index import write_index
from pipeline.states.reader import CacheReader
from pipeline.states.samples import Sample, plan_segments
from pipeline.states.writer import write_segment
from stages.train.batches import Recipe, Samples, Sharing, StepShares, read_ahead

VOCABULARY = 32000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument(
        "--lengths", type=int, nargs=2, default=(200, 1200), help="tokens of the shortest and longest sample"
    )
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--taps", type=int, default=5)
    parser.add_argument("--codec", choices=CODECS, default="none")
    parser.add_argument("--chunk", type=int, default=128, help="chunk_tokens")
    parser.add_argument("--shard", type=int, default=16384, help="shard_tokens")
    parser.add_argument("--segment", type=int, default=65536, help="segment_tokens")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of reading, each way")
    options = parser.parse_args()
    spec = CacheSpec(
        taps=list(range(options.taps)),
        hidden_size=options.hidden,
        vocab_size=VOCABULARY,
        codec=options.codec,
        chunk_tokens=options.chunk,
        shard_tokens=options.shard,
    )
    samples = make_samples(options.samples, options.lengths, spec)
    total = sum(sample.hidden.nbytes + sample.last_hidden.nbytes for sample in samples)
    shortest, longest = options.lengths
    say(f"{len(samples)} samples of {shortest} to {longest} tokens, {size(total)} of states")
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), samples, spec, options.segment, options.seconds)
        if options.hidden == train_step.HIDDEN and options.taps == train_step.TAPS:
            waiting(Path(folder))


def measure(
    folder: Path, samples: list[Sample], spec: CacheSpec, segment_tokens: int, seconds: float
) -> None:
    """Write both forms, read both in the same random order, and print the table."""
    segments = plan_segments([len(sample.input_ids) for sample in samples], segment_tokens)
    for number, members in enumerate(segments):
        write_segment(folder, number, [samples[i] for i in members], spec)
    write_index(folder, spec, len(segments))
    reader, raw = CacheReader(folder), RawReader(folder / "raw", samples)
    assert all(torch.equal(reader.read(i).hidden, raw.read(i).hidden) for i in range(len(samples)))
    mean = sum(sample.hidden.nbytes + sample.last_hidden.nbytes for sample in samples) / len(samples) / 1e6
    rates = {
        "zarr": rate(reader.read, len(samples), seconds),
        "raw memory map": rate(raw.read, len(samples), seconds),
    }
    rows = [
        (
            name,
            f"{value:.1f}",
            f"{value * mean:.0f}",
            f"{1e3 / value:.2f}",
            f"{value / rates['raw memory map']:.2f}",
        )
        for name, value in rates.items()
    ]
    table(
        f"Random samples, one process, codec {spec.codec}",
        ("", "samples/s", "MB/s", "ms a sample", "ratio"),
        rows,
    )


def waiting(folder: Path, steps: int = 8) -> None:
    """Train for ``steps`` steps from the cache in ``folder`` and print the share of time spent waiting for data."""
    samples = Samples(folder, "train", Recipe(seed=0, anchors=32, drafts=7, decay=7.0))
    shares = StepShares(samples, Sharing(0, 4, 4, 1), rank=0)
    model = train_step.draft("grouped")
    waited = spent = 0.0
    with read_ahead(shares, 0, steps + 1, workers=2, pin=False) as stream:
        for step in range(steps + 1):
            started = time.perf_counter()
            micro = next(stream)
            read = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16):
                terms = model.loss(micro.batch, micro.blocks, micro.supervision, LossWeights(0.1, 0.9, 1.0))
            terms.total.backward()
            if step:  # the first step waits until the workers have started
                waited, spent = waited + read - started, spent + time.perf_counter() - started
    say(f"waiting for data: {waited / spent:.2%} of a train step of {spent / steps:.2f} s")


class RawReader:
    """Reads samples from memory maps of plain files, one for each array."""

    def __init__(self, folder: Path, samples: list[Sample]) -> None:
        folder.mkdir()
        self.ends = np.cumsum([0] + [len(sample.input_ids) for sample in samples])
        self.maps = {}
        for name in ("hidden", "last_hidden", "input_ids", "loss_mask"):
            packed = torch.cat([getattr(sample, name) for sample in samples])
            stored = (packed.view(torch.uint16) if packed.dtype == torch.bfloat16 else packed).numpy()
            stored.tofile(folder / name)
            self.maps[name] = np.memmap(folder / name, stored.dtype, "r", shape=stored.shape)

    def read(self, i: int) -> Sample:
        parts = {
            name: torch.from_numpy(np.array(mapped[self.ends[i] : self.ends[i + 1]]))
            for name, mapped in self.maps.items()
        }
        states = {name: parts[name].view(torch.bfloat16) for name in ("hidden", "last_hidden")}
        return Sample(parts["input_ids"], parts["loss_mask"], **states, split="train", key="")


def make_samples(count: int, lengths: tuple[int, int], spec: CacheSpec) -> list[Sample]:
    """Samples of random length and random bits."""
    generator, chooser = torch.Generator().manual_seed(0), random.Random(0)

    def states(length: int, width: int) -> torch.Tensor:
        bits = torch.randint(0x3F00, 0x4000, (length, width), generator=generator, dtype=torch.int16)
        return bits.view(torch.bfloat16)

    samples = []
    for number in range(count):
        length = chooser.randint(*lengths)
        ids = torch.randint(spec.vocab_size, (length,), generator=generator)
        hidden, last = states(length, len(spec.taps) * spec.hidden_size), states(length, spec.hidden_size)
        samples.append(Sample(ids, ids > 0, hidden, last, "train", f"sample{number}"))
    return samples


def rate(read: Callable[[int], Sample], count: int, seconds: float) -> float:
    """Samples a second over about ``seconds`` of reads in random order."""
    chooser = random.Random(1)
    for i in range(count):
        read(i)
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        read(chooser.randrange(count))
        done += 1
    return done / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
