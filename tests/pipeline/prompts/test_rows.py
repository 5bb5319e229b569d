import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import SourceConfig
from pipeline.prompts.rows import Rejection, RowsError, load_rows, messages_of, prompt_key, split_of

USER, BOT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}


def said(*pairs: str) -> list[dict]:
    """from/value messages of (who, what, who, what ...)."""
    return [{"from": who, "value": what} for who, what in zip(pairs[::2], pairs[1::2], strict=True)]


def parts(*items: dict) -> dict:
    return {"messages": [{"role": "user", "content": list(items)}]}


def call(**function: object) -> dict:
    return {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [function]}]}


def write_jsonl(path: Path, rows: list) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path | str, **fields) -> list[dict]:
    return list(load_rows(SourceConfig(path=str(path), **fields)))


# --- reading


def test_jsonl_skips_blank_lines_and_keeps_a_limit(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "1"}\n\n{"prompt": "2"}\n{"prompt": "3"}')
    assert read(path) == [{"prompt": "1"}, {"prompt": "2"}, {"prompt": "3"}]
    assert read(path, limit=2) == [{"prompt": "1"}, {"prompt": "2"}]


@pytest.mark.parametrize("line", ['{"prompt": ', "[1]", '"text"', "\ud800".encode("utf-8", "surrogatepass")])
def test_a_bad_line_is_named(tmp_path: Path, line: str | bytes):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"prompt": "1"}\n' + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    with pytest.raises(RowsError, match="bad.jsonl, line 2: expected"):
        read(path)


def test_a_folder_of_both_formats_is_read_by_name(tmp_path: Path):
    write_jsonl(tmp_path / "b.jsonl", [{"prompt": "2"}])
    pq.write_table(pa.table({"prompt": ["1"]}), tmp_path / "a.parquet")
    write_jsonl(tmp_path / "sub" / "c.jsonl", [{"prompt": "3"}])
    (tmp_path / "README.md").write_text("no rows")
    assert [row["prompt"] for row in read(tmp_path)] == ["1", "2", "3"]


def test_what_cannot_be_read_is_named(tmp_path: Path):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(RowsError, match="bad.parquet: expected a Parquet file"):
        read(tmp_path / "bad.parquet")
    with pytest.raises(RowsError, match="gone.jsonl: no such file"):
        read("data_specs/prompts/gone.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RowsError, match="empty: expected .jsonl or .parquet files"):
        read(tmp_path / "empty")
    (tmp_path / "a.csv").write_text("prompt\n1\n")
    with pytest.raises(RowsError, match="a.csv: expected a .jsonl or .parquet file"):
        read(tmp_path / "a.csv")
    with pytest.raises(RowsError, match="got nothing"):
        read("")


def test_the_packages_own_prompts_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    rows = read("data_specs/prompts/quickstart.jsonl")
    assert len(rows) == 1020 and {row["category"] for row in rows} == {"math", "code", "chat"}
    assert read("data_specs/prompts/quickstart.yaml") == rows


def test_the_working_directory_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_jsonl(tmp_path / "data_specs/prompts/quickstart.jsonl", [{"prompt": "mine"}])
    monkeypatch.chdir(tmp_path)
    assert read("data_specs/prompts/quickstart.jsonl") == [{"prompt": "mine"}]


def test_hub_layout_through_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder with named subsets and splits, as a data set on the Hub has them."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    write_jsonl(folder / "math" / "train.jsonl", [{"prompt": "1"}, {"prompt": "2"}])
    write_jsonl(folder / "math" / "test.jsonl", [{"prompt": "3"}])
    card = "---\nconfigs:\n- config_name: math\n  data_files:\n  - {split: train, path: math/train.jsonl}\n"
    (folder / "README.md").write_text(card + "  - {split: test, path: math/test.jsonl}\n---\n")
    assert read(folder, subset="math", limit=1) == [{"prompt": "1"}]
    assert read(folder, subset="math", split="test") == [{"prompt": "3"}]
    with pytest.raises(RowsError, match="subset math, split validation"):
        read(folder, subset="math", split="validation")
    with pytest.raises(RowsError, match="subset history"):
        read(folder, subset="history")


def test_a_hub_set_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(RowsError, match="path nobody/nothing"):
        read("nobody/nothing")


# --- one form


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"messages": [USER, BOT]}, [USER, BOT]),
        ({"messages": None, "prompt": "hi"}, [USER]),
        ({"conversations": said("human", "hi", "gpt", "hello")}, [USER, BOT]),
        ({"conversations": said("user", "hi", "assistant", "hello")}, [USER, BOT]),
        ({"conversations": [USER, BOT]}, [USER, BOT]),
        ({"turns": ["hi", "hi"]}, [USER, USER]),
        ({"prompt": "hi"}, [USER]),
        ({"prompt": [USER]}, [USER]),
        ({"instruction": "hi", "input": "", "output": "hello"}, [USER, BOT]),
        ({"instruction": "Add.", "input": "1 2", "output": ""}, [{"role": "user", "content": "Add.\n\n1 2"}]),
        ({"prompt": "hi", "system": "Be brief."}, [{"role": "system", "content": "Be brief."}, USER]),
        (parts({"type": "text", "text": "h"}, {"type": "text", "text": "i"}), [USER]),
        ({"messages": [{"from": "system", "value": "s"}, USER]}, [{"role": "system", "content": "s"}, USER]),
        # Parquet fills absent fields with null
        ({"messages": [USER | {"tool_calls": None}, BOT | {"reasoning_content": None}]}, [USER, BOT]),
        ({"messages": [USER, BOT | {"reasoning": "r"}]}, [USER, BOT | {"reasoning_content": "r"}]),
    ],
)  # fmt: skip
def test_known_forms(row: dict, expected: list):
    assert messages_of(row) == expected


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "no_known_fields"),
        ({"text": "hi"}, "no_known_fields"),
        ({"messages": None}, "null_content"),
        ({"messages": []}, "empty"),
        ({"turns": []}, "empty"),
        ({"prompt": " \n"}, "empty_content"),
        ({"messages": [USER, {"role": "assistant", "content": ""}]}, "empty_content"),
        ({"messages": [BOT, USER]}, "assistant_first"),
        ({"messages": [{"role": "system", "content": "s"}, BOT]}, "assistant_first"),
        ({"messages": [{"role": "tool", "content": "s"}, USER]}, "tool_first"),
        ({"messages": [{"role": "system", "content": "s"}]}, "system_only"),
        ({"messages": [USER, {"role": "system", "content": "s"}]}, "system_not_first"),
        ({"messages": [{"role": "user", "content": None}]}, "null_content"),
        ({"messages": [{"role": "user"}]}, "null_content"),
        ({"turns": ["hi", None]}, "null_content"),
        ({"messages": [USER, USER]}, "two_users_in_a_row"),
        ({"messages": [USER, BOT, BOT]}, "two_assistants_in_a_row"),
        ({"messages": [USER, {"role": "tool", "content": "s"}]}, "tool_without_a_call"),
        ({"messages": [{"role": "narrator", "content": "s"}]}, "unknown_role"),
        ({"messages": [{"content": "s"}]}, "unknown_role"),
        ({"messages": "hi"}, "not_a_list_of_messages"),
        ({"messages": ["hi"]}, "not_a_list_of_messages"),
        ({"turns": "hi"}, "not_a_list_of_turns"),
        ({"prompt": 3}, "non_text_content"),
        (parts({"type": "image_url", "image_url": "x"}), "non_text_content"),
        ({"messages": [USER], "tools": [{"name": "f"}]}, "tools_not_supported"),
        (call(name=3), "bad_tool_call"),
        (call(name="f", arguments="{"), "bad_tool_call"),
        (call(name="f", arguments="[1]"), "bad_tool_call"),
    ],
)  # fmt: skip
def test_each_reason(row: dict, reason: str):
    """Pitfall 9."""
    assert messages_of(row) == Rejection(reason)


def test_tool_arguments_as_text_and_as_object_are_one(tmp_path: Path):
    """Pitfall 10, also through Parquet, where text keeps the column's type."""
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": [2]}}}]
    as_object = [USER, {"role": "assistant", "content": None, "tool_calls": calls}]
    as_text = json.loads(json.dumps(as_object))
    as_text[1]["tool_calls"][0]["function"]["arguments"] = '{"b": 1,   "a": [2]}'
    expected = [USER, {"role": "assistant", "content": "", "tool_calls": calls}]
    assert messages_of({"messages": as_object}) == messages_of({"messages": as_text}) == expected
    pq.write_table(pa.Table.from_pylist([{"messages": as_text}]), tmp_path / "a.parquet")
    (row,) = read(tmp_path / "a.parquet")
    assert messages_of(row) == expected


# --- naming and splitting


def test_the_key_is_of_the_prompt_alone():
    key = prompt_key([USER])
    assert key == "897be8e1f0370e7f41788b5b5337627e27486af82d28479ccfbe509c847683b9"  # of [["user","hi"]]
    assert prompt_key([USER, BOT]) == key
    assert prompt_key([{"role": "system", "content": "s"}, USER]) != key
    assert prompt_key([USER, BOT, USER]) == prompt_key([USER, USER]) != key


def test_splits_take_opposite_ends():
    low, middle, high = "0" * 64, "8" + "0" * 63, "f" * 64
    assert [split_of(key, 0.1, 0.1) for key in (low, middle, high)] == ["benchmark", "train", "heldout"]
    assert [split_of(key, 0.0, 0.0) for key in (low, middle, high)] == ["train"] * 3
    assert split_of("19" + "0" * 62, 0.0, 0.1) == "benchmark"  # 0x19 / 256 = 0.098
    assert split_of("1a" + "0" * 62, 0.0, 0.1) == "train"  # 0.102


def test_shares_are_met_on_many_prompts():
    keys = [prompt_key([{"role": "user", "content": str(number)}]) for number in range(4000)]
    splits = [split_of(key, 0.05, 0.2) for key in keys]
    assert abs(splits.count("heldout") / 4000 - 0.05) < 0.015
    assert abs(splits.count("benchmark") / 4000 - 0.2) < 0.025
