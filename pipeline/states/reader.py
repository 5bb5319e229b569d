"""Reads the samples of a target cache from sharded Zarr, in any order."""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import zarr
from torch import Tensor
from zarr.storage import LocalStore

from data_specs.manifest import MANIFEST, Manifest, read_json, read_manifest
from data_specs.target_cache import (
    CACHE_RECORD,
    INDEX,
    INDEX_SCHEMA,
    SCHEMA_VERSION,
    SEGMENT_RECORD,
    SEGMENTS,
    TOKEN_COUNTS,
    TOKEN_COUNTS_SCHEMA,
    CacheError,
    CacheSpec,
    SampleRecord,
    arrays,
    segment_name,
)
from pipeline.console import progress
from pipeline.states.samples import Logits, Sample
from pipeline.states.segments import SEALED, check_files, read_segment_record
from pipeline.states.shards import read_rows

OPEN_ARRAYS = 1024  # the most arrays that one reader keeps open


class _WholeStore(LocalStore):
    """A local store in which a missing chunk is an error; Zarr itself would read the fill value.

    It reads in the calling thread, because switching threads for every chunk takes longer than the read.
    """

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        return self.get_sync(key, prototype=prototype, byte_range=byte_range)

    def get_sync(self, key: str, *, prototype: Any = None, byte_range: Any = None) -> Any:
        value = super().get_sync(key, prototype=prototype, byte_range=byte_range)
        if value is None and key.startswith("c/"):
            raise CacheError(f"{self.root / key}: the chunk is missing")
        return value


def _open(folder: Path, number: int, name: str) -> Any:
    """Open one array of a segment read-only."""
    path = folder / SEGMENTS / segment_name(number) / name
    if not path.is_dir():
        raise CacheError(f"{path}: the array is missing")
    return zarr.open_array(_WholeStore(path, read_only=True), mode="r", zarr_format=3)


class CacheReader:
    """Reads the n samples of the cache in ``folder`` in any order. An unpickled copy opens the files itself.

    ``lengths`` int32 [n] counts tokens and ``supervised`` int64 [n] answer tokens; ``splits`` and ``keys`` have n
    entries; ``token_counts`` is int64 [V]. A ``CacheError`` or ``ManifestError`` names the damaged file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        path = self.folder / CACHE_RECORD
        record = read_json(path)
        try:
            self.spec = CacheSpec(**record["spec"])
            self.segments: int = record["segments"]
            self._sealed: dict[str, Any] = record["sealed"]
        except (KeyError, TypeError) as error:
            raise CacheError(f"{path}: expected the record of a cache, got: {error!r}") from None
        index = _read_parquet(self.folder / INDEX, INDEX_SCHEMA)
        self.keys: list[str] = index["key"].to_pylist()
        self.splits: list[str] = index["split"].to_pylist()
        self.lengths: np.ndarray = index["length"].to_numpy()
        self.supervised: np.ndarray = index["supervised"].to_numpy().astype(np.int64)
        self._segment: np.ndarray = index["segment"].to_numpy()
        self._start = _starts(self.lengths, self._segment)
        self._tokens = np.bincount(self._segment, self.lengths, self.segments).astype(np.int64)
        counts = _read_parquet(self.folder / TOKEN_COUNTS, TOKEN_COUNTS_SCHEMA)
        self.token_counts: np.ndarray = np.zeros(self.spec.vocab_size, np.int64)
        self.token_counts[counts["id"].to_numpy()] = counts["count"].to_numpy()
        self._arrays = arrays(self.spec)
        self._array = lru_cache(OPEN_ARRAYS)(partial(_open, self.folder))

    def __len__(self) -> int:
        return len(self.keys)

    def __reduce__(self) -> tuple[Any, ...]:
        return CacheReader, (self.folder,)

    def read(self, i: int) -> Sample:
        """Sample ``i``. Its tensors share no memory with other samples."""
        parts = {name: self._rows(i, name) for name in self._arrays}
        logits = None
        if self.spec.logits == "topk":
            logits = Logits(parts["logits_values"], parts["logits_ids"], parts["logits_lse"])
        if self.spec.logits == "full":
            logits = Logits(parts["logits_full"])
        return Sample(
            input_ids=parts["input_ids"].long(),
            loss_mask=parts["loss_mask"],
            hidden=parts["hidden"],
            last_hidden=parts["last_hidden"],
            split=self.splits[i],
            key=self.keys[i],
            logits=logits,
        )

    def read_ids(self, i: int) -> tuple[Tensor, Tensor]:
        """Only ``input_ids`` int64 [S] and ``loss_mask`` bool [S] of sample ``i``."""
        return self._rows(i, "input_ids").long(), self._rows(i, "loss_mask")

    def verify(self, full: bool = True) -> None:
        """Compare the cache with its manifest. A ``ManifestError`` names the first file that differs.

        ``full`` hashes every file. Otherwise the chunks of arrays are only checked for presence and size.
        """
        manifest = read_manifest(self.folder)
        self._check_seal(manifest)
        self._check_records(manifest)
        hashed = sum(record.size for name, record in manifest.files.items() if full or _is_small(name))
        with progress("checking the cache", hashed) as bar:
            check_files(self.folder, manifest.files, lambda name: full or _is_small(name), bar.advance)

    def _rows(self, i: int, name: str) -> Tensor:
        number, start = int(self._segment[i]), int(self._start[i])
        stop, array = start + int(self.lengths[i]), self._arrays[name]
        if self.spec.codec == "none" or array.columns is None:
            path = self.folder / SEGMENTS / segment_name(number) / name
            rows = read_rows(path, array, self.spec, int(self._tokens[number]), start, stop)
        else:
            rows = self._array(number, name)[start:stop]
        tensor = torch.from_numpy(rows)
        return tensor.view(torch.bfloat16) if array.meaning == "bfloat16" else tensor

    def _check_seal(self, manifest: Manifest) -> None:
        """Compare the manifest with its copy in cache.json, which is protected by the hash in the manifest."""
        path = self.folder / MANIFEST
        if manifest.kind != "cache" or manifest.schema_version != SCHEMA_VERSION:
            got = f"{manifest.kind} of schema {manifest.schema_version}"
            raise CacheError(f"{path}: expected a cache of schema {SCHEMA_VERSION}, got {got}")
        for name in SEALED:
            if name not in self._sealed or self._sealed[name] != getattr(manifest, name):
                raise CacheError(f"{path}: field {name} was edited: it differs from {CACHE_RECORD}")

    def _check_records(self, manifest: Manifest) -> None:
        """Check that disk, manifest and segment records have the same files, and index and records the same samples."""
        on_disk = {p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*") if p.is_file()}
        expected = {CACHE_RECORD, INDEX, TOKEN_COUNTS}
        samples: list[SampleRecord] = []
        for number in range(self.segments):
            prefix = f"{SEGMENTS}/{segment_name(number)}"
            record = read_segment_record(self.folder, number)
            samples += record.samples
            expected.add(f"{prefix}/{SEGMENT_RECORD}")
            for name, file in record.files.items():
                expected.add(f"{prefix}/{name}")
                if manifest.files.get(f"{prefix}/{name}") != file:
                    raise CacheError(f"{self.folder / prefix / name}: manifest and segment record disagree")
        for got, where in ((on_disk - {MANIFEST}, "on disk"), (set(manifest.files), f"in {MANIFEST}")):
            for name in sorted(got ^ expected):
                state = "missing" if name in expected else "not part of the cache, but present"
                raise CacheError(f"{self.folder / name}: {state} {where}")
        columns = (self.keys, self.splits, self.lengths.tolist(), self.supervised.tolist())
        if [SampleRecord(*row) for row in zip(*columns, strict=True)] != samples:
            raise CacheError(f"{self.folder / INDEX}: its samples are not those of the segments")


def _is_small(name: str) -> bool:
    return "/c/" not in name


def _starts(lengths: np.ndarray, segment: np.ndarray) -> np.ndarray:
    """The first token of every sample inside its segment. The samples of a segment are neighbours in the index."""
    ends = np.cumsum(lengths, dtype=np.int64)
    first = np.r_[True, segment[1:] != segment[:-1]] if len(segment) else np.zeros(0, bool)
    base = np.where(first, ends - lengths, 0)
    starts: np.ndarray = ends - lengths - np.maximum.accumulate(base)
    return starts


def _read_parquet(path: Path, schema: pa.Schema) -> pa.Table:
    if not path.is_file():
        raise CacheError(f"{path}: expected a Parquet file, found none")
    try:
        table = pq.read_table(path, partitioning=None)
    except (pa.ArrowInvalid, OSError) as error:
        raise CacheError(f"{path}: expected a Parquet file, got: {error}") from error
    if not table.schema.equals(schema):
        raise CacheError(f"{path}: expected the columns {schema.names}, got {table.schema.names}")
    return table
