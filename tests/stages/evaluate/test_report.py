"""The files of an evaluation's report, which study it shows, and the last screen."""

import html_page
import pytest
import tiny_summary

from data_specs.manifest import write_json
from data_specs.results.summary import read_summary
from pipeline.store.artifacts import Store
from stages.evaluate.report import show, write_report

FILES = ["acceptance_by_position.png", "accepted_length.png", "report.html", "summary.json", "summary.md"]


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.fixture
def work(store):
    return store.begin("evaluation", "tiny_dspark", 1, "e" * 64, {"draft": "d" * 64}, {})


def study_of(store, draft, mark, throughput):
    told = tiny_summary.study()
    told["real"][0]["metrics"]["throughput"] = throughput
    made = store.begin("study", "tiny_dspark", 2, mark * 64, {"draft": draft * 64}, {})
    write_json(made.path / "study.json", told)
    store.commit(made, {})


def page_of(work):
    return html_page.Page((work.path / "report.html").read_text())


def test_every_form_of_a_report(store, work):
    summary = tiny_summary.summary()
    write_report(work, store, tiny_summary.record(summary))
    assert sorted(path.name for path in work.path.iterdir()) == FILES
    assert read_summary(work.path) == tiny_summary.record(summary)
    assert (work.path / "summary.md").read_text().startswith("# tiny_dspark on tiny\n")
    page = page_of(work)
    assert page.numbers["", "zeta/accepted_length"]["value"] == 2.5
    assert "e" * 16 in page.text and not any(key.startswith("study/") for _, key in page.numbers)


def test_the_latest_study_of_the_draft_is_shown(store, work):
    for draft, mark, throughput in (("d", "1", 10.25), ("d", "2", 20.5), ("x", "3", 30.75)):
        study_of(store, draft, mark, throughput)
    write_report(work, store, tiny_summary.record(tiny_summary.summary()))
    assert page_of(work).numbers["", "study/real/0/metrics/throughput"] == {"value": 20.5}


def test_the_last_screen(store, work, capsys):
    write_report(work, store, tiny_summary.record(tiny_summary.summary()))
    artifact = store.commit(work, {})
    show(artifact)
    shown = capsys.readouterr().out
    for text in ("2.50 [2.40, 2.53]", "macro average", "tiny_dspark:v0", str(artifact.path), "stage=list"):
        assert text in shown
