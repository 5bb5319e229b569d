import pyarrow as pa
import pyarrow.parquet as pq
from tiny_errors import refused

from data_specs.evaluation import EvaluationError
from data_specs.served import ANSWERS, SCHEMA, read_answers, write_answers

ROW = {
    "benchmark": "gsm8k", "prompt": 0, "key": "k", "turn": 0, "mode": "draft", "context": 7, "tokens": [5, 258],
    "seconds": 0.25, "finish": "stop", "drafts": 1, "drafted": 3, "accepted": 0, "accepted_at": [0, 0, 0],
}  # fmt: skip
PLAIN = ROW | {"mode": "plain", "drafts": None, "drafted": None, "accepted": None, "accepted_at": None}


def test_answers_come_back_as_they_were(tmp_path):
    (tmp_path / ANSWERS).mkdir()
    write_answers(tmp_path / ANSWERS / "gsm8k-00001.parquet", [PLAIN])
    write_answers(tmp_path / ANSWERS / "gsm8k-00000.parquet", [ROW])
    assert read_answers(tmp_path).to_pylist() == [ROW, PLAIN]
    assert set(ROW) == set(SCHEMA.names)


def test_what_is_no_table_of_answers_is_named(tmp_path):
    with refused(EvaluationError, tmp_path / ANSWERS):
        read_answers(tmp_path)
    (tmp_path / ANSWERS).mkdir()
    (tmp_path / ANSWERS / "a-00000.parquet").write_bytes(b"half")
    with refused(EvaluationError, tmp_path / ANSWERS / "a-00000.parquet"):
        read_answers(tmp_path)


def test_another_schema_is_named(tmp_path):
    (tmp_path / ANSWERS).mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / ANSWERS / "a-00000.parquet")
    with refused(EvaluationError, "a-00000.parquet", "'accepted_at'", ["x"]):
        read_answers(tmp_path)
