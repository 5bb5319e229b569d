"""Summaries have the layout that they always had, and are told apart by their section ``served``."""

import json

import pytest

from data_specs.results.records import RecordError, to_json
from data_specs.results.summary import EvaluationFacts, ServedFacts, read_summary, write_summary
from tests import tiny_summary

SERVED_FACTS = {
    "draft": "d", "target": "t", "sampler": {"temperature": 0.0}, "max_new_tokens": 8, "thinking": None,
    "device": "vLLM 0.20", "dtype": "bfloat16", "prompts": {"math": 3}, "server": "http://a", "model": "m",
    "plain_server": None, "plain_model": None, "note": None,
}  # fmt: skip


def stored(folder, values):
    (folder / "summary.json").write_text(json.dumps(values))
    return read_summary(folder)


def served():
    own = {"facts": SERVED_FACTS, "served": {"steps_told": True, "past_end": 0, "promised": None}}
    return tiny_summary.summary() | own | {"context": []}


def test_an_evaluation_comes_back(tmp_path):
    values = tiny_summary.full(batch=4)
    found = stored(tmp_path, values)
    assert isinstance(found.facts, EvaluationFacts) and found.facts.batch == 4
    assert found.benchmarks["zeta"].metrics.accepted_length.value == 2.5
    assert [(bucket.first, bucket.after) for bucket in found.context] == [(0, 512), (32768, None)]
    assert json.loads(json.dumps(to_json(found))) == values


def test_an_older_summary_has_no_batch_and_no_sections(tmp_path):
    values = tiny_summary.summary()
    del values["calibration"], values["sweep"], values["facts"]["prompts"]["alpha"]
    found = stored(tmp_path, values)
    assert (found.facts.batch, found.calibration, found.sweep, found.profile) == (1, None, None, None)


def test_a_server_s_summary_comes_back(tmp_path):
    found = stored(tmp_path, served())
    assert isinstance(found.facts, ServedFacts) and found.served.steps_told
    write_summary(tmp_path, found)
    assert json.loads((tmp_path / "summary.json").read_text()) == served()
    assert read_summary(tmp_path) == found


def test_a_wrong_field_is_named(tmp_path):
    values = tiny_summary.summary()
    values["benchmarks"]["zeta"]["metrics"]["speedup"]["value"] = "1.7"
    with pytest.raises(RecordError) as error:
        stored(tmp_path, values)
    assert "summary.json: benchmarks.zeta.metrics.speedup.value: expected" in str(error.value)
    assert "got '1.7'" in str(error.value)
    values = served()
    del values["facts"]["server"]
    with pytest.raises(RecordError) as error:
        stored(tmp_path, values)
    assert "facts.server: expected" in str(error.value)
