import json

import pytest

from data_specs.sps import SpsError, locate, names, read_table

GOOD = {
    "name": "box", "machine": "a box", "model": "tiny", "source": "model", "note": "not measured", "context": 0,
    "position_seconds": 0.0, "points": [{"tokens": 1, "steps_per_second": 10}, {"tokens": 8, "steps_per_second": 5.0}],
    "draft": [{"requests": 1, "seconds": 0.01}],
}  # fmt: skip


@pytest.fixture
def written(tmp_path):
    def write(**changes):
        path = tmp_path / "table.json"
        path.write_text(json.dumps({k: v for k, v in (GOOD | changes).items() if v is not ...}))
        return path

    return write


def test_a_table_is_read(written) -> None:
    table = read_table(written())
    assert table.points == ((1, 10.0), (8, 5.0)) and table.draft == ((1, 0.01),)
    table.check_covers(8, 1)


def test_a_table_that_is_too_short_names_what_is_missing(written) -> None:
    table = read_table(written())
    with pytest.raises(SpsError, match="table box: points: reaches B = 8, needed is B = 9"):
        table.check_covers(9, 1)
    with pytest.raises(SpsError, match="table box: draft: reaches R = 1, needed is R = 2"):
        table.check_covers(8, 2)


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"note": ...}, "expected the fields"),
        ({"more": 1}, "expected the fields"),
        ({"source": "guess"}, "source: expected one of"),
        ({"note": ""}, "note: expected text"),
        ({"context": -1}, "context: expected a finite number >= 0, got -1"),
        ({"points": []}, "points: expected a list of points"),
        ({"points": [{"tokens": 1}]}, r"points\[0\]: expected tokens and steps_per_second"),
        ({"points": [{"tokens": 2, "steps_per_second": 1}]}, r"points\[0\]: tokens: expected 1 in the first"),
        ({"points": [GOOD["points"][0]] * 2}, r"points\[1\]: tokens: expected at least 2, got 1"),
        ({"points": [{"tokens": 1, "steps_per_second": 0}]}, r"points\[0\]: steps_per_second: expected a finite"),
        ({"draft": [{"requests": 1, "seconds": float("nan")}]}, r"draft\[0\]: seconds: expected a finite"),
    ],
)  # fmt: skip
def test_errors_name_file_and_field(written, changes, message) -> None:
    path = written(**changes)
    with pytest.raises(SpsError, match=message) as error:
        read_table(path)
    assert str(path) in str(error.value)


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(SpsError, match="h100_qwen3_4b"):
        locate("h200")


@pytest.mark.parametrize("name", names())
def test_the_tables_of_the_project_are_sound_and_say_that_they_are_not_measured(name: str) -> None:
    table = read_table(locate(name))
    assert table.name == name
    assert table.source == "measured" or "not measured" in table.note
    table.check_covers(2048 * 8, 2048)
