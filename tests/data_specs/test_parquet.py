from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_specs.parquet import write_table


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
