"""What pages are told of an evaluation: in the making, from the disk, and its facts as text."""

import re
from dataclasses import replace

import pytest
import tiny_summary

from data_specs.manifest import ManifestError
from data_specs.results.summary import write_summary
from pipeline.report.evaluation import committed, facts, in_the_making
from pipeline.store.artifacts import Store


@pytest.fixture
def store(tmp_path):
    """A store with a draft; its cache is elsewhere."""
    store = Store(tmp_path)
    store.commit(store.begin("draft", "tiny_dspark", 1, "d" * 64, {"cache": "c" * 64}, {}), {})
    return store


def begun(store):
    return store.begin("evaluation", "tiny_dspark", 1, "e" * 64, {"draft": "d" * 64}, {})


def lines(evaluation):
    return [(one.role, one.reference, one.fingerprint[0]) for one in evaluation.ancestors]


LINEAGE = [("draft", "tiny_dspark:v0", "d"), ("cache", None, "c")]


def test_an_evaluation_in_the_making_is_told_as_it_will_be_committed(store):
    work, summary = begun(store), tiny_summary.record(tiny_summary.summary())
    making = in_the_making(work, summary, store)
    assert (making.label, making.summary, making.fingerprint) == ("tiny_dspark", summary, "e" * 64)
    assert lines(making) == LINEAGE
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", making.created)
    write_summary(work.path, summary)
    artifact = store.commit(work, {})
    found = committed(artifact, store)
    assert (found.label, found.summary) == ("tiny_dspark:v0", summary) and lines(found) == LINEAGE
    for name in ("packages", "revision", "fingerprint"):
        assert getattr(found, name) == getattr(making, name) == getattr(artifact.manifest, name)
    assert found.created == artifact.manifest.created
    assert committed(artifact, store, "b").label == "b"


def test_a_summary_that_is_missing_is_named(store):
    with pytest.raises(ManifestError, match="summary.json"):
        committed(store.commit(begun(store), {}), store)


def test_an_average_is_a_row_only_of_several_benchmarks():
    summary = tiny_summary.summary()
    one = tiny_summary.evaluation(summary)
    assert (one.title, one.positions) == ("tiny_dspark on tiny", 3)
    assert [row[:2] for row in one.rows] == [
        ("zeta", "zeta"), ("alpha", "alpha"), ("macro average", "macro"),
    ]  # fmt: skip
    assert [row[2].accepted_length.value for row in one.rows] == pytest.approx([2.5, 1.7, 2.1])
    summary["benchmarks"]["zeta"]["metrics"] = None  # not one answer
    one = tiny_summary.evaluation(summary)
    assert list(one.named) == ["alpha"] and [row[:2] for row in one.rows] == [("alpha", "alpha")]
    summary["benchmarks"]["alpha"]["metrics"] = None
    assert tiny_summary.evaluation(summary).rows == []


def test_facts_are_text_in_an_order_of_their_own():
    one = tiny_summary.evaluation(tiny_summary.summary(batch=16))
    told = facts(one)
    assert list(told) == [
        "Draft", "Target", "Sampler", "Confidence threshold", "New tokens at most", "Thinking mode", "Device", "Type",
        "Prompts at a time", "Prompts trained on", "Prompts", "Made", "Packages", "Revision of draftline",
    ]  # fmt: skip
    assert (told["Sampler"], told["Prompts at a time"]) == ("temperature 0.0", "16")
    assert told["Thinking mode"] == "the chat template's default" and told["Prompts"] == "zeta 4, alpha 4"
    assert (told["Made"], told["Packages"]) == ("2026-11-30 03:19 UTC", "torch 2.13.0")
    assert told["Revision of draftline"] == "f00dcafe1234"
    other = facts(replace(tiny_summary.evaluation(tiny_summary.summary(thinking=False)), revision=None))
    assert (other["Thinking mode"], other["Revision of draftline"]) == ("off", "unknown")
