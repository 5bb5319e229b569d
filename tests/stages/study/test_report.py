"""The files of a study and its last screen."""

import json

import html_page
import pytest
import tiny_summary

from data_specs.study import MARKDOWN, RESULT
from pipeline import console
from pipeline.report.page import PAGE
from pipeline.store.artifacts import Store
from stages.study.report import show, write_report


@pytest.fixture
def artifact(tmp_path):
    store = Store(tmp_path)
    work = store.begin("study", "tiny", 1, "f" * 64, {}, {})
    write_report(work.path, tiny_summary.study_record())
    return store.commit(work, {})


def test_files(artifact) -> None:
    assert json.loads((artifact.path / RESULT).read_text()) == tiny_summary.study()
    text = (artifact.path / MARKDOWN).read_text()
    assert text.startswith("# tiny_dspark on tiny\n") and "(study_load_measured.png)" in text
    assert (artifact.path / "study_front_h100.png").read_bytes().startswith(b"\x89PNG")
    assert html_page.Page((artifact.path / PAGE).read_text()).faults == []


def test_last_screen(artifact, capsys, monkeypatch) -> None:
    monkeypatch.setattr(console.console, "width", 100)  # too narrow for all columns: two tables
    show(artifact)
    shown = capsys.readouterr().out
    for text in ("prefill", "fixed_7", "+3.6 %", "study   tiny:v0", "experiment=serving_study"):
        assert text in shown
