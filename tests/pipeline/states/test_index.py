import json
from pathlib import Path

import pyarrow.parquet as pq
import torch
from tiny_errors import refused
from tiny_states import VOCABULARY

from data_specs.manifest import ManifestError
from pipeline.states.reader import CacheReader
from pipeline.store.artifacts import Artifact


def test_the_index_counts_what_is_there(made: Artifact) -> None:
    reader = CacheReader(made.path)
    assert len(reader) == 7
    assert reader.lengths.tolist() == [5, 7, 3, 9, 20, 1, 2]
    assert reader.supervised.tolist() == [3, 4, 2, 5, 10, 1, 1]
    assert reader.keys == ["key0", "key1", "key2", "key3", "key4", "key5", "key6"]
    assert reader.splits == ["train", "train", "heldout", "train", "train", "heldout", "train"]
    ids = torch.cat([reader.read(i).input_ids for i in range(7)])
    assert reader.token_counts.tolist() == torch.bincount(ids, minlength=VOCABULARY).tolist()
    assert [reader.read_ids(4)[0].tolist(), reader.read_ids(4)[1].tolist()] == [
        reader.read(4).input_ids.tolist(), [False] * 10 + [True] * 10,
    ]  # fmt: skip
    counts = {name: made.manifest.counts[name] for name in ("samples", "tokens", "supervised", "splits")}
    assert counts == {"samples": 7, "tokens": 47, "supervised": 26, "splits": {"train": 5, "heldout": 2}}
    files = [
        path for path in (made.path / "segments").rglob("*") if path.is_file() and path.name != "segment.json"
    ]
    assert made.manifest.counts["bytes"] == sum(path.stat().st_size for path in files)


def test_an_index_of_other_samples_is_refused(cache: Path) -> None:
    table = pq.read_table(cache / "index.parquet")
    pq.write_table(table.take([1, 0, 2, 3, 4, 5, 6]), cache / "index.parquet")
    with refused(ManifestError, cache / "index.parquet"):
        CacheReader(cache).verify(full=False)


def test_json_of_the_manifest_is_what_is_compared(made: Artifact) -> None:
    """The seal goes through JSON like the manifest: a second reading of either is equal."""
    record = json.loads((made.path / "cache.json").read_text())
    assert record["sealed"]["config"] == {"taps": [0, 2]}
    assert record["segments"] == 4
