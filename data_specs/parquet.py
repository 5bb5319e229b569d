"""Parquet files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_table(path: Path, table: pa.Table) -> None:
    """Write ``table`` to ``path``: a temporary name, fsync, rename. Artifacts.commit removes what a kill leaves."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as handle:
        pq.write_table(table, handle, compression="zstd")
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(path)
