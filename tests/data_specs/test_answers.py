import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_errors import refused

from data_specs.answers import AnswerRow, AnswersError, answer_files, read_answers, read_counts, write_answers


def row(**changes) -> AnswerRow:
    values = {
        "key": "ab" * 32, "split": "train", "category": None, "turn": 0,
        "prompt_ids": [1, 2], "answer_ids": [3, 258],
        "finish_reason": "stop", "messages": "[]", "thinking": None, "sampling": "{}",
    }  # fmt: skip
    return AnswerRow(**(values | changes))


def test_rows_come_back_in_the_order_of_units(tmp_path: Path):
    write_answers(tmp_path / "00001.parquet", [row(turn=1, thinking=False)])
    write_answers(tmp_path / "00000.parquet", [row(category="math"), row(answer_ids=[])])
    table = read_answers(tmp_path)
    assert table["turn"].to_pylist() == [0, 0, 1]
    assert table["thinking"].to_pylist() == [None, None, False]
    assert table["category"].to_pylist() == ["math", None, None]
    assert table["answer_ids"].to_pylist() == [[3, 258], [], [3, 258]]
    assert read_answers(tmp_path, ["key"]).column_names == ["key"]


def test_counts_are_summed_over_files(tmp_path: Path):
    write_answers(tmp_path / "00000.parquet", [row()], {"rejected/prompt_too_long": 2, "retokenized": 1})
    write_answers(tmp_path / "00001.parquet", [], {"rejected/prompt_too_long": 3})
    assert read_counts(tmp_path) == {"rejected/prompt_too_long": 5, "retokenized": 1}


def test_an_empty_folder_gives_an_empty_table(tmp_path: Path):
    assert read_answers(tmp_path).num_rows == 0
    assert read_counts(tmp_path) == {}


def test_nothing_is_left_beside_the_file_and_bytes_repeat(tmp_path: Path):
    digests = []
    for _ in range(2):
        write_answers(tmp_path / "00000.parquet", [row()], {"b": 1, "a": 2})
        digests.append(hashlib.sha256((tmp_path / "00000.parquet").read_bytes()).hexdigest())
    assert [path.name for path in tmp_path.iterdir()] == ["00000.parquet"]
    assert digests[0] == digests[1]


def test_a_killed_writers_leftover_is_not_read(tmp_path: Path):
    write_answers(tmp_path / "00000.parquet", [row()])
    (tmp_path / ".00001.parquet.77.tmp").write_bytes(b"half")
    assert [path.name for path in answer_files(tmp_path)] == ["00000.parquet"]
    assert read_answers(tmp_path).num_rows == 1


def test_a_shortened_file_is_named(tmp_path: Path):
    path = tmp_path / "00000.parquet"
    write_answers(path, [row()])
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(AnswersError, match="00000.parquet"):
        read_answers(tmp_path)


def test_damaged_pages_are_named(tmp_path: Path):
    path = tmp_path / "00000.parquet"
    write_answers(path, [row(messages="x" * 5000)])
    content = bytearray(path.read_bytes())
    content[8:60] = b"\0" * 52
    path.write_bytes(bytes(content))
    with pytest.raises(AnswersError, match="00000.parquet"):
        read_answers(tmp_path)


def test_a_file_from_before_there_were_tools_has_none(tmp_path: Path):
    write_answers(tmp_path / "00000.parquet", [row()])
    pq.write_table(
        pq.read_table(tmp_path / "00000.parquet").drop_columns("tools"), tmp_path / "00000.parquet"
    )
    write_answers(tmp_path / "00001.parquet", [row(tools="[1]")])
    assert read_answers(tmp_path)["tools"].to_pylist() == [None, "[1]"]
    assert read_answers(tmp_path, ["turn", "tools"]).to_pydict() == {"turn": [0, 0], "tools": [None, "[1]"]}
    assert read_answers(tmp_path, ["turn"]).column_names == ["turn"]


def test_another_files_columns_are_refused(tmp_path: Path):
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "00000.parquet")
    with refused(AnswersError, "00000.parquet", "'prompt_ids'", "['text']"):
        read_answers(tmp_path)
