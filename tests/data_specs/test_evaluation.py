"""Round tables are whole or absent, and refused when they are not what they should be."""

import pyarrow as pa
import pyarrow.parquet as pq
from tiny_errors import refused

from data_specs.evaluation import HELDOUT_ROUNDS, ROUNDS, SCHEMA, EvaluationError, read_rounds, write_rounds

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


def test_parts_are_apart(tmp_path):
    for part, row in ((ROUNDS, ROW), (HELDOUT_ROUNDS, ROW | {"prompt": 7})):
        (tmp_path / part).mkdir()
        write_rounds(tmp_path / part / "heldout-00000.parquet", [row])
    assert read_rounds(tmp_path).to_pylist() == [ROW]
    assert read_rounds(tmp_path, HELDOUT_ROUNDS).to_pylist() == [ROW | {"prompt": 7}]


def test_a_unit_without_rows_is_a_file_too(tmp_path):
    (tmp_path / ROUNDS).mkdir()
    write_rounds(tmp_path / ROUNDS / "b-00000.parquet", [])
    assert read_rounds(tmp_path).schema == SCHEMA


def test_no_rounds(tmp_path):
    with refused(EvaluationError, tmp_path / ROUNDS):
        read_rounds(tmp_path)


def test_a_truncated_file_is_named(tmp_path):
    (tmp_path / ROUNDS).mkdir()
    path = tmp_path / ROUNDS / "b-00000.parquet"
    write_rounds(path, [ROW])
    path.write_bytes(path.read_bytes()[:-20])
    with refused(EvaluationError, path):
        read_rounds(tmp_path)


def test_another_schema_is_named(tmp_path):
    (tmp_path / ROUNDS).mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / ROUNDS / "b-00000.parquet")
    with refused(EvaluationError, "b-00000.parquet", "'accepted'", "['x']"):
        read_rounds(tmp_path)
