import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_errors import refused

from pipeline.config import SourceConfig
from pipeline.prompts.rows import Rejection
from pipeline.prompts.sources import RowsError, load_rows, local_files

USER, BOT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}


def write_jsonl(path: Path, rows: list) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path | str, **fields) -> list:
    return list(load_rows(SourceConfig(path=str(path), **fields)))


def test_jsonl_skips_blank_lines_and_keeps_a_limit(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "1"}\n\n{"prompt": "2"}\n{"prompt": "3"}')
    assert read(path) == [{"prompt": "1"}, {"prompt": "2"}, {"prompt": "3"}]
    assert read(path, limit=2) == [{"prompt": "1"}, {"prompt": "2"}]


@pytest.mark.parametrize("line", ['{"prompt": ', "[1]", '"text"', "\ud800".encode("utf-8", "surrogatepass")])
def test_a_bad_line_is_named(tmp_path: Path, line: str | bytes):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"prompt": "1"}\n' + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    with pytest.raises(RowsError) as error:
        read(path)
    assert "bad.jsonl, line 2" in str(error.value)


def test_a_folder_of_both_formats_is_read_by_name(tmp_path: Path):
    write_jsonl(tmp_path / "b.jsonl", [{"prompt": "2"}])
    pq.write_table(pa.table({"prompt": ["1"]}), tmp_path / "a.parquet")
    write_jsonl(tmp_path / "sub" / "c.jsonl", [{"prompt": "3"}])
    (tmp_path / "README.md").write_text("no rows")
    assert [row["prompt"] for row in read(tmp_path)] == ["1", "2", "3"]


def test_every_format_gives_the_same_rows(tmp_path: Path):
    rows = [{"messages": [USER, BOT], "category": "a"}, {"messages": [BOT], "category": "b"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    cells = "messages,category\n" + "".join(
        '"' + json.dumps(row["messages"]).replace('"', '""') + f'",{row["category"]}\n' for row in rows
    )
    texts = {
        "lines.jsonl": lines, "list.json": json.dumps(rows), "object.json": json.dumps({"version": 1, "data": rows}),
        "lines.json": lines, "table.csv": cells, "marked.jsonl": "\ufeff" + lines, "marked.csv": "\ufeff" + cells,
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    for name in ("lines.jsonl.gz", "list.json.gz"):
        (tmp_path / name).write_bytes(gzip.compress(texts[name[:-3]].encode()))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "table.parquet")
    for path in sorted(tmp_path.iterdir()):
        assert read(path) == rows, path.name


def test_one_object_in_a_json_file_is_one_row(tmp_path: Path):
    (tmp_path / "a.json").write_text(json.dumps({"messages": [USER, BOT]}))
    (tmp_path / "b.json").write_text(json.dumps({"prompt": "hi", "tags": ["x"]}))
    assert read(tmp_path / "a.json") == [{"messages": [USER, BOT]}]
    assert read(tmp_path / "b.json") == [{"prompt": "hi", "tags": ["x"]}]


def test_a_glob_reads_what_it_matches_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("b", "a", "c"):
        write_jsonl(tmp_path / "logs" / f"{name}.jsonl", [{"prompt": name}])
    write_jsonl(tmp_path / "logs" / "a.json", [{"prompt": "no"}])
    monkeypatch.chdir(tmp_path)
    assert [row["prompt"] for row in read("logs/*.jsonl")] == ["a", "b", "c"]
    assert [row["prompt"] for row in read(tmp_path / "logs" / "[ab].jsonl")] == ["a", "b"]
    assert local_files(SourceConfig(path="logs/[ab].jsonl")) == [Path("logs/a.jsonl"), Path("logs/b.jsonl")]
    with pytest.raises(RowsError) as error:
        read("logs/z*.jsonl")
    assert "logs/z*.jsonl" in str(error.value)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested_too_deeply"),
        ('{"prompt": 1' + "0" * 5000 + "}", "number_too_long"),
    ],
    ids=["nested", "digits"],
)
def test_a_line_that_python_cannot_hold_is_a_rejection(tmp_path: Path, line: str, reason: str):
    path = tmp_path / "a.jsonl"
    path.write_text(line + '\n{"prompt": "hi"}\n')
    assert read(path) == [Rejection(reason), {"prompt": "hi"}]


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.csv", b"prompt,answer\nonly one\n", ["a.csv", "line 2", "2 cells"]),
        ("a.csv", b'prompt\n"open\n', ["a.csv", "line"]),
        ("a.csv", b"prompt\n\xff\xfe\n", ["a.csv", "UTF-8"]),
        ("a.json", b"[1, 2]", ["a.json", "row 0", "int"]),
        ("a.json", b'{"prompt": "hi"', ["a.json"]),
        ("a.json", b"[" * 100_000, ["a.json", "nested"]),
        ("a.jsonl.gz", b"no gzip", ["a.jsonl.gz", "gzip"]),
        ("a.jsonl.gz", gzip.compress(b'{"prompt": "hi"}' * 100)[:-9], ["a.jsonl.gz", "gzip"]),
        ("a.parquet", b"PAR1", ["a.parquet", "Parquet"]),
        ("a.txt", b"hi", ["a.txt", ".jsonl", ".csv"]),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes, named: list[str]):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RowsError) as error:
        read(tmp_path / name)
    assert all(part in str(error.value) for part in named), error.value


def test_what_is_not_there_is_named(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for path, named in (
        ("data_specs/prompts/gone.jsonl", "gone.jsonl"),
        (tmp_path / "empty", "empty"),
        ("", "data.sources path"),
    ):
        with pytest.raises(RowsError) as error:
            read(path)
        assert named in str(error.value)


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
    with refused(RowsError, "math", "validation"):
        read(folder, subset="math", split="validation")
    with refused(RowsError, "history"):
        read(folder, subset="history")


def test_a_hub_set_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(RowsError) as error:
        read("nobody/nothing")
    assert "nobody/nothing" in str(error.value)


@pytest.mark.parametrize(
    "raised",
    [RuntimeError("Dataset scripts are no longer supported"), KeyError("train"), TypeError("cast"),
     NotImplementedError("x"), AttributeError("x"), ConnectionError("x")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_whatever_the_datasets_library_raises_names_the_source(
    monkeypatch: pytest.MonkeyPatch, raised: Exception
):
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("datasets.load_dataset", fail)
    with pytest.raises(RowsError) as error:
        read("someone/something")
    assert "someone/something" in str(error.value) and type(raised).__name__ in str(error.value)
