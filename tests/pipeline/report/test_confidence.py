"""What the report says of a calibration and a sweep, in Markdown and on the screen; summaries without either."""

from pathlib import Path

import pytest
import tiny_summary

from data_specs.results.records import parse
from data_specs.results.summary import CalibrationEffect
from pipeline.report import confidence
from pipeline.report.evaluation import Evaluation
from pipeline.report.markdown import write_markdown
from pipeline.report.screen import show


def position(rounds, ece, auc=0.75):
    held = {"predicted": [None] * 19 + [0.96], "observed": [None] * 19 + [0.9], "counts": [0] * 19 + [rounds]}
    return {"rounds": rounds, "ece": ece, "brier": 0.125, "auc": auc} | held


NOTHING = {"rounds": 0, "ece": 0.0, "brier": 0.0, "auc": None, "predicted": [None] * 20, "observed": [None] * 20,
           "counts": [0] * 20}  # fmt: skip
CALIBRATION = {
    "prompts": 51, "rounds": 1234, "data": "quickstart", "temperatures": [2.5, 0.5, 1.0],
    "before": [position(1000, 0.2), position(900, 0.1, None), NOTHING],
    "after": [position(1000, 0.02), position(900, 0.04, None), NOTHING],
}  # fmt: skip
ROW = {
    "threshold": 0.3, "accepted": 1.5, "rejected": 0.5, "acceptance_rate": 0.75, "accepted_length": 2.5, "exact": 3,
    "anew": 1,
}  # fmt: skip
BARE = ROW | {
    "threshold": 0.9,
    "accepted": 0.0,
    "rejected": 0.0,
    "acceptance_rate": None,
    "exact": 0,
    "anew": 4,
}


def sections(**changes):
    one = Evaluation("d:v0", tiny_summary.record(tiny_summary.summary() | changes), "2026-11-30")
    return [confidence.calibration(one), confidence.sweep(one)]


BOTH = {"calibration": CALIBRATION, "sweep": [ROW, BARE]}


def test_files(tmp_path):
    write_markdown(tmp_path / "a.md", "t", sections(**BOTH))
    text = (tmp_path / "a.md").read_text()
    assert "| 1 | 1,000 | 2.50 | 20.0 % | 2.0 % | 0.125 | 0.125 | 0.750 | 0.750 |" in text
    assert "| 2 | 900 | 0.50 | 10.0 % | 4.0 % | 0.125 | 0.125 | - | - |" in text
    assert "| 3 | 0 | 1.00 | - | - | - | - | - | - |" in text
    assert "| 0.3 | 1.50 | 0.50 | 75.0 % | 2.50 | 3 | 1 |" in text
    assert "| 0.9 | 0.00 | 0.00 | - | 2.50 | 0 | 4 |" in text
    assert "1,234 rounds of 51 held-out prompts of quickstart" in text
    for name in (confidence.RELIABILITY_PLOT, confidence.SWEEP_PLOT):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG") and f"({name})" in text


def test_last_screen(capsys):
    show(sections(**BOTH))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["before", "15.0", "%", "20.0", "%", "10.0", "%", "-"] in rows
    assert ["after", "3.0", "%", "2.0", "%", "4.0", "%", "-"] in rows
    assert ["0.3", "1.50", "0.50", "75.0", "%", "2.50", "3", "1"] in rows


def test_a_line_for_other_tables():
    expected = "ECE 15.0 % -> 3.0 % on average, by position 20.0 % -> 2.0 %, 10.0 % -> 4.0 %"
    assert (
        confidence.in_a_line(parse(CALIBRATION, CalibrationEffect, Path("summary.json")))
        == f"calibrated confidence: {expected}"
    )


@pytest.mark.parametrize("changes", [{}, {"calibration": None, "sweep": None}])
def test_without_either(tmp_path, capsys, changes):
    write_markdown(tmp_path / "a.md", "t", sections(**changes))
    show(sections(**changes))
    assert [path.name for path in tmp_path.iterdir()] == ["a.md"] and capsys.readouterr().out == ""
    assert (tmp_path / "a.md").read_text() == "# t\n"
