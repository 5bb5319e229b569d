"""The index of a target cache, which is written when all segments are finished."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data_specs.manifest import write_json
from data_specs.parquet import write_table
from data_specs.target_cache import (
    CACHE_RECORD,
    INDEX,
    INDEX_SCHEMA,
    SEGMENTS,
    SPLITS,
    TOKEN_COUNTS,
    TOKEN_COUNTS_SCHEMA,
    CacheSpec,
    SegmentRecord,
    arrays,
    segment_name,
)
from pipeline.states.segments import read_segment_record
from pipeline.states.shards import read_rows


def write_index(
    folder: Path, spec: CacheSpec, segments: int, sealed: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Write the index, token counts and ``cache.json`` of the finished segments 0 to ``segments`` - 1.

    ``sealed`` holds the fields ``SEALED`` of the future manifest; ``verify`` compares this copy with the manifest.
    Returns the manifest's counts, to which samples, tokens, supervised tokens, bytes and samples by split are added.
    """
    sealed = sealed or {}
    for leftover in (folder / SEGMENTS).glob(".*.partial"):
        shutil.rmtree(leftover)
    records = [read_segment_record(folder, number) for number in range(segments)]
    rows = [asdict(sample) | {"segment": record.number} for record in records for sample in record.samples]
    write_table(folder / INDEX, pa.Table.from_pylist(rows, INDEX_SCHEMA))
    occurring = _token_counts(folder, spec, records)
    ids = np.flatnonzero(occurring)
    columns = {"id": ids.astype(np.int32), "count": occurring[ids]}
    write_table(folder / TOKEN_COUNTS, pa.table(columns, schema=TOKEN_COUNTS_SCHEMA))
    counts: dict[str, Any] = {
        "samples": len(rows),
        "tokens": sum(row["length"] for row in rows),
        "supervised": sum(row["supervised"] for row in rows),
        "bytes": sum(file.size for record in records for file in record.files.values()),
        "splits": {split: sum(row["split"] == split for row in rows) for split in SPLITS},
    } | sealed.get("counts", {})
    record = {"spec": asdict(spec), "segments": segments, "sealed": sealed | {"counts": counts}}
    write_json(folder / CACHE_RECORD, record)
    return counts


def _token_counts(folder: Path, spec: CacheSpec, records: list[SegmentRecord]) -> np.ndarray:
    counts, array = np.zeros(spec.vocab_size, np.int64), arrays(spec)["input_ids"]
    for record in records:
        tokens = sum(sample.length for sample in record.samples)
        path = folder / SEGMENTS / segment_name(record.number) / "input_ids"
        counts += np.bincount(read_rows(path, array, spec, tokens, 0, tokens), minlength=spec.vocab_size)
    return counts
