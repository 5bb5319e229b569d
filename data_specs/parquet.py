"""Parquet files, each of which exists whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data_specs.errors import UserError
from data_specs.files import written_whole


def write_table(path: Path, table: pa.Table) -> None:
    """Write ``table``; at any moment, ``path`` is absent, the whole old file or the whole new one."""
    with written_whole(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_table(path: Path, schema: pa.Schema, what: str, error: type[UserError]) -> pa.Table:
    """The table at ``path``. ``error`` names a file that is no Parquet file of ``what`` or has other columns."""
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as cause:
        raise error(f"{path}: expected a Parquet file of {what}, got: {cause}") from None
    if not table.schema.equals(schema):
        named = schema.names != table.schema.names
        expected, got = (
            [f.name if named else f"{f.name} {f.type}" for f in s] for s in (schema, table.schema)
        )
        raise error(f"{path}: expected the columns {expected}, got {got}")
    return table


def read_tables(folder: Path, schema: pa.Schema, what: str, error: type[UserError]) -> pa.Table:
    """All Parquet files in ``folder`` as one table, in the order of their names.

    Raises ``error`` naming the folder if it has none, or a file as ``read_table`` does.
    """
    paths = sorted(folder.glob("*.parquet"))
    if not paths:
        raise error(f"{folder}: expected Parquet files of {what}, found none")
    return pa.concat_tables([read_table(path, schema, what, error) for path in paths])
