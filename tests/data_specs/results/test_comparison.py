"""A comparison comes back as it was; a wrong field is named."""

import json

import pytest
import tiny_summary

from data_specs.results.comparison import read_comparison, write_comparison
from data_specs.results.records import RecordError


def stored(folder, values):
    (folder / "comparison.json").write_text(json.dumps(values))
    return read_comparison(folder)


def test_a_comparison_comes_back(tmp_path):
    found = stored(tmp_path, tiny_summary.comparison())
    assert found.table.rows["zeta"].accepted_length["mtp"].interval == (1.4, 1.6)
    assert found.figures["block"].latency["dspark"][1].share == 0.5
    write_comparison(tmp_path, found)
    assert json.loads((tmp_path / "comparison.json").read_text()) == tiny_summary.comparison()


def test_a_wrong_field_is_named(tmp_path):
    values = tiny_summary.comparison()
    del values["variants"]["dspark"]["draft"]
    with pytest.raises(RecordError) as error:
        stored(tmp_path, values)
    assert "comparison.json: variants.dspark.draft: expected" in str(error.value)
