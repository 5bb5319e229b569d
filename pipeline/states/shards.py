"""Reads rows of uncompressed Zarr shards directly from the file.

An uncompressed shard consists of its chunks in order and an index: offset and size of every chunk (uint64,
little-endian) and a CRC-32C. Neighbouring rows are therefore adjacent in the file, and one read fetches them. Reading
them through Zarr takes ten times the processor time.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from data_specs.target_cache import ArraySpec, CacheError, CacheSpec, shard_rows

ENTRY_BYTES, CRC_BYTES = 16, 4


def read_rows(
    folder: Path, array: ArraySpec, spec: CacheSpec, tokens: int, start: int, stop: int
) -> np.ndarray:
    """Rows ``start`` to ``stop`` - 1 of the uncompressed array in ``folder``, which holds ``tokens`` rows.

    The result is [rows, columns], or [rows] for an array with one axis. ``CacheError`` names a missing or short file.
    """
    shard = shard_rows(spec, tokens)
    parts = []
    for number in range(start // shard, -(-stop // shard)):
        first, last = max(start - number * shard, 0), min(stop - number * shard, shard)
        path = folder / "c" / str(number) / ("0" if array.columns else "")
        count = (last - first) * (array.columns or 1)
        try:
            values = np.fromfile(path, array.stored, count, offset=first * array.token_bytes)
        except FileNotFoundError:
            raise CacheError(f"{path}: the chunk is missing") from None
        if len(values) != count:
            raise CacheError(f"{path}: shortened: expected {count} values at row {first}, got {len(values)}")
        parts.append(values)
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return rows.reshape(-1, array.columns) if array.columns else rows


def check_order(folder: Path, array: ArraySpec, spec: CacheSpec, tokens: int) -> None:
    """Raise ``CacheError`` unless every shard of the array in ``folder`` holds its chunks in order and without gaps.

    ``read_rows`` relies on this order, but Zarr may store the chunks of a shard in any order.
    """
    if array.columns is None:
        return  # not sharded
    shard, size = shard_rows(spec, tokens), spec.chunk_tokens * array.token_bytes
    entries = shard // spec.chunk_tokens
    for number in range(-(-tokens // shard)):
        path = folder / "c" / str(number) / "0"
        chunks = -(-min(tokens - number * shard, shard) // spec.chunk_tokens)
        with path.open("rb") as file:
            file.seek(-(ENTRY_BYTES * entries + CRC_BYTES), os.SEEK_END)
            index = np.frombuffer(file.read(ENTRY_BYTES * entries), "<u8").reshape(entries, 2)
        expected = np.stack([np.arange(chunks) * size, np.full(chunks, size)], 1)
        if not np.array_equal(index[:chunks], expected):
            raise CacheError(f"{path}: its chunks are not stored in order")
