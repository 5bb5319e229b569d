"""A serving study: drawings and tables of each system, and what its checks say in sentences."""

import pytest
import tiny_summary

from pipeline.report.markdown import markdown
from pipeline.report.model import SCREEN, Drawings, Lines, Table
from pipeline.report.study import serving, setting, title, verdicts


@pytest.fixture
def study():
    return tiny_summary.study_record()


def drawings(study) -> dict[str, list[Lines]]:
    return {block.file: block.charts for block in serving(study).blocks if isinstance(block, Drawings)}


def test_every_system_has_its_drawings(study) -> None:
    found = drawings(study)
    assert list(found) == [
        "study_front_measured.png", "study_load_measured.png",
        "study_front_h100.png", "study_load_h100.png", "study_arrivals_h100.png",
    ]  # fmt: skip
    assert [len(charts) for charts in found.values()] == [1, 2, 1, 2, 3]
    (front,) = found["study_front_measured.png"]
    assert list(front.guides) == [10.0, 80.0]  # the speeds that users are to see
    lines = [one for one in front.series if not one.loose]
    assert [(p.x, p.y) for p in lines[0].points] == [(5.85, 23.4), (11.7, 11.7)] and lines[0].label == "plain"


def test_a_policy_has_one_colour_on_all_drawings(study) -> None:
    styles = {
        (series.label, series.style)
        for charts in drawings(study).values()
        for chart in charts
        for series in chart.series
    }
    assert styles == {("plain", 0), ("fixed_7", 1), ("algorithm_1", 2)}


def test_the_last_screen_has_the_measured_points_and_the_prediction(study) -> None:
    tables = [block for block in serving(study).shown(SCREEN) if isinstance(block, Table)]
    assert [table.caption for table in tables] == ["Measured", "The simulation against the measured runs"]
    assert [len(table.rows) for table in tables] == [9, 1]
    assert set(tables[0].parts[0]) | set(tables[0].parts[1]) == set(tables[0].columns)


def test_verdicts(study) -> None:
    accuracy, verdict, plain = verdicts(study)
    assert "3.6%" in accuracy and "fixed_7 at 2" in accuracy and "1 measured" in accuracy
    for part in ("h100", "algorithm_1", "1.2%", "2%: holds", "3.5%", "6.10 at 1", "0.10 at 64", "(falls)"):
        assert part in verdict
    assert "h100" in plain and "2048" in plain
    values = tiny_summary.study()
    values["checks"]["h100"]["algorithm_1"] |= {
        "shortfall": 0.05, "holds": False, "budget_falls": False, "plain_ahead_from": None,
    }  # fmt: skip
    values["prediction"] = []
    (verdict,) = verdicts(tiny_summary.study_record(values))
    assert "5.0%" in verdict and "does NOT hold" in verdict and "does NOT fall" in verdict


def test_the_setting(study) -> None:
    first, simulation, note = setting(study)
    for part in (
        "tiny_dspark on tiny",
        "cpu, float32",
        "temperature 0.0",
        "zeta, alpha",
        "48",
        "threshold 0.5",
    ):
        assert part in first
    assert note == "h100: computed"
    assert title(study) == "tiny_dspark on tiny"


def test_markdown_has_the_tables(study) -> None:
    text = markdown(title(study), [serving(study)])
    assert "| fixed_7 | 2 | 16.5 | 17.1 | +3.6 % |" in text
    assert "| h100 | algorithm_1 | 1,234.6 | 987.6 |" in text
    assert "![Throughput against speed](study_front_h100.png)" in text
