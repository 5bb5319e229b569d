"""The files of a comparison and its last screen."""

import json

import html_page
import tiny_summary

from data_specs.results.comparison import MARKDOWN, RESULT
from pipeline import console
from pipeline.report.page import PAGE
from pipeline.store.artifacts import Store
from stages.compare.report import show, write_report


def test_files(tmp_path) -> None:
    write_report(tmp_path, tiny_summary.comparison_record())
    assert json.loads((tmp_path / RESULT).read_text()) == tiny_summary.comparison()
    text = (tmp_path / MARKDOWN).read_text()
    assert text.startswith("# Drafters on t\n")
    for plot in ("comparison_lengths.png", "comparison_conditional.png", "comparison_block.png"):
        assert (tmp_path / plot).read_bytes().startswith(b"\x89PNG")
        assert f"({plot})" in text
    assert html_page.Page((tmp_path / PAGE).read_text()).faults == []


def test_last_screen(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(console.console, "width", 140)
    store = Store(tmp_path)
    work = store.begin("comparison", "t_drafters", 1, "f" * 64, {}, {})
    write_report(work.path, tiny_summary.comparison_record())
    artifact = store.commit(work, {})
    show(artifact)
    shown = capsys.readouterr().out
    for text in (
        "Table 1: accepted length", "0.75 [0.70, 0.80]", "20 % of 5.0", "comparison  t_drafters:v0",
        "python -m pipeline stage=list",
    ):  # fmt: skip
        assert text in shown
    assert str(artifact.path / PAGE) in "".join(line.strip("│ ") for line in shown.splitlines())
