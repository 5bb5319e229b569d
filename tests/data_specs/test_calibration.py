"""calibration.json comes back as it was written, and is refused when it is not this draft's."""

import json
import math

import pytest
from tiny_errors import refused

from data_specs.calibration import (
    CALIBRATION,
    Calibration,
    CalibrationFileError,
    check_use,
    draft_contents,
    read_calibration,
    write_calibration,
)

MADE = Calibration(
    draft="d" * 64, target="t" * 64, sampler={"temperature": 0.0}, dtype="float32", thinking=None, data="chat",
    made_with="m" * 64, keys=["a", "b"], rounds=9, temperatures=[1.5, 0.5], before=[], after=[],
)  # fmt: skip


def test_it_comes_back(tmp_path):
    write_calibration(tmp_path, MADE)
    assert read_calibration(tmp_path, "d" * 64, drafts=2) == MADE
    stored = json.loads((tmp_path / CALIBRATION).read_text())
    assert (stored["schema_version"], stored["prompts"], stored["temperatures"]) == (1, 2, [1.5, 0.5])
    assert [path.name for path in tmp_path.iterdir()] == [CALIBRATION]


def test_a_missing_one_is_named_with_how_to_make_it(tmp_path):
    with refused(CalibrationFileError, "calibration.json", "evaluate.calibrate=true"):
        read_calibration(tmp_path, "d" * 64, drafts=2)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"draft": "e" * 64}, ["draft", "dddddddddddd", "eeeeeeeeeeee"]),
        ({"schema_version": 2}, ["schema_version", 1, 2]),
        ({"temperatures": [1.0]}, ["temperatures", 2, "[1.0]"]),
        ({"temperatures": [1.0, 0.0]}, ["temperatures[1]", 0.0]),
        ({"temperatures": [math.inf, 1]}, ["temperatures[0]", "inf"]),
        ({"temperatures": [math.nan, 1]}, ["temperatures[0]", "nan"]),
        ({"temperatures": ["1", 1]}, ["temperatures[0]", "'1'"]),
        ({"more": 1}, ["'more'"]),
    ],
)
def test_what_is_not_this_drafts_is_named(tmp_path, changes, named):
    write_calibration(tmp_path, MADE)
    path = tmp_path / CALIBRATION
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with refused(CalibrationFileError, path, *named):
        read_calibration(tmp_path, "d" * 64, drafts=2)


FOR = {"target": "t" * 64, "sampler": {"temperature": 0.0}, "thinking": None, "keys": {"c"}}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"target": "u" * 64}, ["target", "uuuuuuuuuuuu", "tttttttttttt"]),
        ({"sampler": {"temperature": 1.0}}, ["sampler", "{'temperature': 1.0}", "{'temperature': 0.0}"]),
        ({"thinking": True}, ["thinking", True, None]),
        ({"keys": {"b", "c"}}, ["keys", 1, "b"]),
    ],
)
def test_one_for_other_answers_is_named_with_how_to_fit_it(tmp_path, changes, named):
    check_use(tmp_path, MADE, **FOR)
    with refused(CalibrationFileError, "calibration.json", *named, "stage=evaluate evaluate.calibrate=true"):
        check_use(tmp_path, MADE, **(FOR | changes))


def test_a_drafts_contents_are_its_config_and_weights(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    before = draft_contents(tmp_path)
    (tmp_path / CALIBRATION).write_text("{}")
    (tmp_path / "metrics.jsonl").write_text("")
    assert draft_contents(tmp_path) == before
    (tmp_path / "model.safetensors").write_bytes(b"Weights")
    assert draft_contents(tmp_path) != before
