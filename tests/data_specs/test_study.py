"""Tables of a study come back as they were written; a damaged one, and one of another schema, is named."""

import pyarrow as pa
import pyarrow.parquet as pq
from tiny_errors import refused

from data_specs.study import POOL_SCHEMA, STEP_SCHEMA, TIME_SCHEMA, StudyError, read_rows, write_rows

ROWS = [
    {"answer": 0, "prompt": 9, "limit": 4, "held": 2, "confidences": [0.75, 0.5]},
    {"answer": 1, "prompt": 8, "limit": 4, "held": None, "confidences": [0.0, 0.0]},
]


def test_rows_come_back(tmp_path):
    write_rows(tmp_path / "pool.parquet", ROWS, POOL_SCHEMA)
    assert read_rows(tmp_path / "pool.parquet", POOL_SCHEMA) == ROWS
    write_rows(tmp_path / "empty.parquet", [], TIME_SCHEMA)
    assert read_rows(tmp_path / "empty.parquet", TIME_SCHEMA) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.parquet", "pool.parquet"]


def test_a_damaged_table_is_named(tmp_path):
    path = tmp_path / "c0001-plain-0.parquet"
    with refused(StudyError, path):
        read_rows(path, TIME_SCHEMA)
    write_rows(path, [], TIME_SCHEMA)
    path.write_bytes(path.read_bytes()[:-9])
    with refused(StudyError, path):
        read_rows(path, TIME_SCHEMA)


def test_another_schema_is_named(tmp_path):
    path = tmp_path / "pool.parquet"
    write_rows(path, ROWS, POOL_SCHEMA)
    with refused(StudyError, path, "'part'", "'answer'"):
        read_rows(path, STEP_SCHEMA)
    table = pq.read_table(path)
    place = table.schema.get_field_index("held")
    pq.write_table(table.set_column(place, "held", table["held"].cast(pa.int64())), path)
    with refused(StudyError, path, "'held int16'", "'held int64'"):
        read_rows(path, POOL_SCHEMA)
