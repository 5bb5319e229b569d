"""Caches of a few random samples, with every kind of array."""

from collections.abc import Callable
from pathlib import Path

import torch

from data_specs.manifest import read_json, write_json
from data_specs.target_cache import CacheSpec
from pipeline.states.index import write_index
from pipeline.states.samples import Logits, Sample, plan_segments
from pipeline.states.segments import SEALED
from pipeline.states.writer import write_segment
from pipeline.store.artifacts import Artifact, Store

VOCABULARY = 50


def spec_of(**changes: object) -> CacheSpec:
    values: dict[str, object] = {
        "taps": [0, 2], "hidden_size": 3, "vocab_size": VOCABULARY, "chunk_tokens": 4, "shard_tokens": 8,
    }  # fmt: skip
    return CacheSpec(**(values | changes))  # type: ignore[arg-type]


def sample_of(length: int, spec: CacheSpec, seed: int = 0, **changes: object) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[spec.dtype]

    def states(width: int) -> torch.Tensor:
        return torch.randn(length, width, generator=generator).to(dtype)

    logits = None
    if spec.logits == "topk":
        ids = torch.randint(VOCABULARY, (length, spec.top_k), generator=generator, dtype=torch.int32)
        logits = Logits(states(spec.top_k), ids, torch.randn(length, generator=generator))
    if spec.logits == "full":
        logits = Logits(states(VOCABULARY))
    values: dict[str, object] = {
        "input_ids": torch.randint(VOCABULARY, (length,), generator=generator),
        "loss_mask": torch.arange(length) >= length // 2,
        "hidden": states(2 * 3),
        "last_hidden": states(3),
        "split": "heldout" if seed % 3 == 2 else "train",
        "key": f"key{seed}",
        "logits": logits,
    }
    return Sample(**(values | changes))  # type: ignore[arg-type]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32)


def assert_equal(got: Sample, expected: Sample) -> None:
    assert (got.key, got.split) == (expected.key, expected.split)
    assert torch.equal(got.input_ids, expected.input_ids)
    assert torch.equal(got.loss_mask, expected.loss_mask)
    assert torch.equal(bits(got.hidden), bits(expected.hidden))
    assert torch.equal(bits(got.last_hidden), bits(expected.last_hidden))
    if expected.logits is None:
        assert got.logits is None
        return
    for name in ("values", "ids", "lse"):
        one, other = getattr(got.logits, name), getattr(expected.logits, name)
        assert (one is None and other is None) or torch.equal(one, other)


def make(root: Path, spec: CacheSpec, samples: list[Sample], segment_tokens: int = 12) -> Artifact:
    """A committed cache of ``samples``."""
    store = Store(root)
    work = store.begin("cache", "tiny", 1, "f" * 64, {"answers": "a" * 64}, {"taps": spec.taps})
    segments = plan_segments([len(sample.input_ids) for sample in samples], segment_tokens)
    for number, members in enumerate(segments):
        write_segment(work.path, number, [samples[i] for i in members], spec)
    sealed = {name: getattr(work, name) for name in SEALED if name != "counts"}
    return store.commit(work, write_index(work.path, spec, len(segments), sealed))


LENGTHS = (5, 7, 3, 9, 20, 1, 2)


def flip(path: Path, at: int = 7) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def edit(path: Path, change: Callable[[dict], object]) -> None:
    value = read_json(path)
    change(value)
    write_json(path, value)


EDITS: dict[str, Callable[[dict], object]] = {
    "counts": lambda m: m["counts"].update(samples=8),
    "config": lambda m: m["config"].update(taps=[0, 1]),
    "parents": lambda m: m["parents"].update(answers="b" * 64),
    "fingerprint": lambda m: m.update(fingerprint="0" * 64),
    "name": lambda m: m.update(name="other"),
    "schema_version": lambda m: m.update(schema_version=2),
    "kind": lambda m: m.update(kind="answers"),
    "a size": lambda m: m["files"]["segments/00000/hidden/c/0/0"].update(size=1),
    "a hash": lambda m: m["files"]["segments/00000/hidden/c/0/0"].update(sha256="0" * 64),
    "the hash of the index": lambda m: m["files"]["index.parquet"].update(sha256="0" * 64),
    "one file less": lambda m: m["files"].pop("segments/00000/hidden/c/0/0"),
    "no index": lambda m: m["files"].pop("index.parquet"),
    "one file more": lambda m: m["files"].update({"more": {"size": 0, "sha256": ""}}),
    "a field less": lambda m: m.pop("counts"),
}
