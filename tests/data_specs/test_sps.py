import json

import pytest
from tiny_errors import refused

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
    with refused(SpsError, "box", "points", 8, 9):
        table.check_covers(9, 1)
    with refused(SpsError, "box", "draft", 1, 2):
        table.check_covers(8, 2)


@pytest.mark.parametrize(
    "changes,named",
    [
        ({"note": ...}, [sorted(set(GOOD)), sorted(set(GOOD) - {"note"})]),
        ({"more": 1}, ["'more'"]),
        ({"source": "guess"}, ["source", "'model'", "'guess'"]),
        ({"note": ""}, ["note", "''"]),
        ({"context": -1}, ["context", 0, -1]),
        ({"points": []}, ["points", "[]"]),
        ({"points": [{"tokens": 1}]}, ["points[0]", "tokens", "steps_per_second"]),
        ({"points": [{"tokens": 2, "steps_per_second": 1}]}, ["points[0]", "tokens", 1, 2]),
        ({"points": [GOOD["points"][0]] * 2}, ["points[1]", "tokens", 2, 1]),
        ({"points": [{"tokens": 1, "steps_per_second": 0}]}, ["points[0]", "steps_per_second", 0]),
        ({"draft": [{"requests": 1, "seconds": float("nan")}]}, ["draft[0]", "seconds", "nan"]),
    ],
)  # fmt: skip
def test_errors_name_file_and_field(written, changes, named) -> None:
    path = written(**changes)
    with refused(SpsError, path, *named):
        read_table(path)


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(SpsError, match="h100_qwen3_4b"):
        locate("h200")


@pytest.mark.parametrize("name", names())
def test_the_tables_of_the_project_are_sound_and_say_that_they_are_not_measured(name: str) -> None:
    table = read_table(locate(name))
    assert table.name == name
    assert table.source == "measured" or "not measured" in table.note
    table.check_covers(2048 * 8, 2048)
