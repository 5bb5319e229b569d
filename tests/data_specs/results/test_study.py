"""A study comes back as it was; one of before ``speed`` and ``steady`` is read; a wrong field is named."""

import json

import pytest
import tiny_summary

from data_specs.results.records import RecordError
from data_specs.results.study import read_study, write_study


def stored(folder, values):
    (folder / "study.json").write_text(json.dumps(values))
    return read_study(folder)


def test_a_study_comes_back(tmp_path):
    found = stored(tmp_path, tiny_summary.study())
    assert found.real[0].metrics.tokens == 96 and found.simulated[-1].arrival == 1.25
    assert found.checks["h100"]["algorithm_1"].budgets == [(1, 6.1), (64, 0.1)]
    write_study(tmp_path, found)
    assert json.loads((tmp_path / "study.json").read_text()) == tiny_summary.study()


def test_an_older_study_is_read(tmp_path):
    values = tiny_summary.study()
    for name in ("steady", "speed"):
        del values["real"][0]["metrics"][name]
    assert stored(tmp_path, values).real[0].metrics.speed is None


def test_a_wrong_field_is_named(tmp_path):
    values = tiny_summary.study()
    values["fronts"]["measured"]["points"]["plain"] = [[8.0]]
    with pytest.raises(RecordError) as error:
        stored(tmp_path, values)
    assert "study.json: fronts.measured.points.plain.0.1: expected" in str(error.value)
