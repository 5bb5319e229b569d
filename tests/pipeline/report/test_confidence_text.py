"""What the report says of a calibration and a sweep; summaries made before there was either."""

import pytest

from pipeline.report import confidence_text as report


def position(rounds, ece, auc=0.75):
    held = {"predicted": [None] * 19 + [0.96], "observed": [None] * 19 + [0.9], "counts": [0] * 19 + [rounds]}
    return {"rounds": rounds, "ece": ece, "brier": 0.125, "auc": auc} | held


NOTHING = {"rounds": 0, "ece": 0.0, "brier": 0.0, "auc": None, "predicted": [None] * 20, "observed": [None] * 20,
           "counts": [0] * 20}  # fmt: skip


@pytest.fixture
def result():
    calibration = {
        "prompts": 51, "rounds": 1234, "data": "quickstart", "temperatures": [2.5, 0.5, 1.0],
        "before": [position(1000, 0.2), position(900, 0.1, None), NOTHING],
        "after": [position(1000, 0.02), position(900, 0.04, None), NOTHING],
    }  # fmt: skip
    row = {
        "threshold": 0.3,
        "accepted": 1.5,
        "rejected": 0.5,
        "acceptance_rate": 0.75,
        "accepted_length": 2.5,
    }
    bare = row | {"threshold": 0.9, "accepted": 0.0, "rejected": 0.0, "acceptance_rate": None}
    return {
        "calibration": calibration,
        "sweep": [row | {"exact": 3, "anew": 1}, bare | {"exact": 0, "anew": 4}],
    }


def test_text(result):
    text = "\n".join(report.markdown(result))
    assert "| 1 | 1,000 | 2.50 | 20.0 % | 2.0 % | 0.125 | 0.125 | 0.750 | 0.750 |" in text
    assert "| 2 | 900 | 0.50 | 10.0 % | 4.0 % | 0.125 | 0.125 | - | - |" in text
    assert "| 3 | 0 | 1.00 | - | - | - | - | - | - |" in text
    assert "| 0.3 | 1.50 | 0.50 | 75.0 % | 2.50 | 3 | 1 |" in text
    assert "| 0.9 | 0.00 | 0.00 | - | 2.50 | 0 | 4 |" in text
    assert "1,234 rounds of 51 held-out prompts of quickstart" in report.footnotes(result)[0]
    expected = {"calibration/ece_before": 0.15, "calibration/ece_after": 0.03}
    assert report.flat_metrics(result) == pytest.approx(expected)  # over the two positions with rounds


def test_last_screen(result, capsys):
    report.show(result)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["before", "15.0", "%", "20.0", "%", "10.0", "%", "-"] in rows
    assert ["after", "3.0", "%", "2.0", "%", "4.0", "%", "-"] in rows
    assert ["0.3", "1.50", "0.50", "75.0", "%", "2.50", "3", "1"] in rows


def test_a_line_for_other_tables(result):
    expected = "ECE 15.0 % -> 3.0 % on average, by position 20.0 % -> 2.0 %, 10.0 % -> 4.0 %"
    assert report.in_a_line(result["calibration"]) == f"calibrated confidence: {expected}"


def test_plots(result, tmp_path):
    report.plots(tmp_path, result)
    for name in (report.RELIABILITY_PLOT, report.SWEEP_PLOT):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("result", [{}, {"calibration": None, "sweep": None}])
def test_without_either(result, tmp_path, capsys):
    assert report.markdown(result) == report.footnotes(result) == []
    assert report.flat_metrics(result) == {}
    report.plots(tmp_path, result)
    report.show(result)
    assert not list(tmp_path.iterdir()) and capsys.readouterr().out == ""
