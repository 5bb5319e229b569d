from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_errors import refused

from data_specs.errors import UserError
from data_specs.parquet import read_tables, write_table


def test_written_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", pa.table({"x": [1, 2]}))
    assert pq.read_table(tmp_path / "a.parquet").to_pydict() == {"x": [1, 2]}
    assert [p.name for p in tmp_path.iterdir()] == ["a.parquet"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_table(path, pa.table({"x": [1]}))
    with pytest.raises(AttributeError):
        write_table(path, "no table")  # type: ignore[arg-type]
    assert pq.read_table(path).to_pydict() == {"x": [1]}


def test_the_files_of_a_folder_are_one_table_by_name(tmp_path: Path) -> None:
    for name, value in (("b", 2), ("a", 1)):
        write_table(tmp_path / f"{name}.parquet", pa.table({"x": [value]}))
    schema = pa.schema([("x", pa.int64())])
    assert read_tables(tmp_path, schema, "numbers", UserError).to_pydict() == {"x": [1, 2]}
    with refused(UserError, tmp_path / "none"):
        read_tables(tmp_path / "none", schema, "numbers", UserError)
    with refused(UserError, tmp_path / "a.parquet", "x", "y"):
        read_tables(tmp_path, pa.schema([("y", pa.int64())]), "numbers", UserError)
