"""Records come back as they were; a field that is missing or of a wrong type is named with file, expected and got."""

import json
from dataclasses import dataclass
from typing import Annotated

import pytest
from pydantic import Field

from data_specs.manifest import ManifestError
from data_specs.results.records import Omitted, RecordError, read_record, to_json, write_record


@dataclass(frozen=True)
class Inner:
    low: Annotated[int, Field(alias="from")]
    pair: tuple[float, float] | None


@dataclass(frozen=True)
class Outer:
    name: str
    parts: dict[str, Inner]
    later: float | None = None
    rare: Omitted[int] = None


RECORD = Outer("n", {"a": Inner(3, (1, 2.5)), "b": Inner(4, None)})
JSON = {
    "name": "n",
    "parts": {"a": {"from": 3, "pair": [1, 2.5]}, "b": {"from": 4, "pair": None}},
    "later": None,
}


def test_a_record_comes_back(tmp_path):
    write_record(tmp_path / "r.json", RECORD)
    assert json.loads((tmp_path / "r.json").read_text()) == JSON
    assert read_record(tmp_path / "r.json", Outer) == RECORD


def test_a_field_that_may_be_left_out_is_written_only_with_a_value():
    assert "rare" not in to_json(RECORD)
    assert to_json(Outer("n", {}, rare=0))["rare"] == 0


def test_a_file_of_before_a_field_is_read(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps({"name": "n", "parts": {}}))
    assert read_record(tmp_path / "r.json", Outer) == Outer("n", {}, None, None)


@pytest.mark.parametrize(
    ("values", "field", "got"),
    [
        ({"parts": {}}, "name", "no such field"),
        ({"name": 3, "parts": {}}, "name", "3"),
        (JSON | {"parts": {"a": {"from": "3", "pair": None}}}, "parts.a.from", "'3'"),
        (JSON | {"parts": {"a": {"from": 3, "pair": [1.0]}}}, "parts.a.pair.1", "no such field"),
        (JSON | {"later": True}, "later", "True"),
        ([], "the whole file", "[]"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(tmp_path, values, field, got):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(values))
    with pytest.raises(RecordError) as error:
        read_record(path, Outer)
    assert str(error.value).startswith(f"{path}: {field}: expected ") and f"got {got};" in str(error.value)


@pytest.mark.parametrize("text", [None, "{"])
def test_a_file_that_is_missing_or_no_json_is_named(tmp_path, text):
    if text is not None:
        (tmp_path / "r.json").write_text(text)
    with pytest.raises(ManifestError) as error:
        read_record(tmp_path / "r.json", Outer)
    assert str(tmp_path / "r.json") in str(error.value)
