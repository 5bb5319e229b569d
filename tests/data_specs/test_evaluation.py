"""Round tables are whole or absent, and refused when they are not what they should be."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_specs.evaluation import ROUNDS, SCHEMA, EvaluationError, read_rounds, write_rounds

ROW = {
    "benchmark": "b", "prompt": 0, "key": "k", "turn": 0, "mode": "draft", "round": 1, "context": 9,
    "drafted": 3, "proposed": 3, "accepted": 1, "emitted": 2, "tokens": [5, 6], "confidences": None,
    "draft_seconds": 0.25, "verify_seconds": 0.5, "finish": "stop",
}  # fmt: skip


def test_rows_come_back_in_the_order_of_files(tmp_path):
    (tmp_path / ROUNDS).mkdir()
    write_rounds(tmp_path / ROUNDS / "b-00001.parquet", [ROW | {"prompt": 1}])
    write_rounds(tmp_path / ROUNDS / "b-00000.parquet", [ROW, ROW | {"round": 2, "confidences": [0.5, 0.25]}])
    rows = read_rounds(tmp_path).to_pylist()
    assert rows == [ROW, ROW | {"round": 2, "confidences": [0.5, 0.25]}, ROW | {"prompt": 1}]
    assert [path.name for path in sorted((tmp_path / ROUNDS).iterdir())] == [
        "b-00000.parquet",
        "b-00001.parquet",
    ]


def test_a_unit_without_rows_is_a_file_too(tmp_path):
    (tmp_path / ROUNDS).mkdir()
    write_rounds(tmp_path / ROUNDS / "b-00000.parquet", [])
    assert read_rounds(tmp_path).schema == SCHEMA


def test_no_rounds(tmp_path):
    with pytest.raises(EvaluationError, match="rounds: expected Parquet files of rounds, found none"):
        read_rounds(tmp_path)


def test_a_truncated_file_is_named(tmp_path):
    (tmp_path / ROUNDS).mkdir()
    path = tmp_path / ROUNDS / "b-00000.parquet"
    write_rounds(path, [ROW])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(EvaluationError, match="b-00000.parquet: expected a Parquet file of rounds, got"):
        read_rounds(tmp_path)


def test_another_schema_is_named(tmp_path):
    (tmp_path / ROUNDS).mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / ROUNDS / "b-00000.parquet")
    with pytest.raises(EvaluationError, match=r"b-00000.parquet: expected the columns .* got \['x'\]"):
        read_rounds(tmp_path)
