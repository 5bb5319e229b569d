"""Several evaluations side by side: what they share, and what is left out."""

import tiny_summary
from tiny_errors import refused
from tiny_summary import evaluation

from pipeline.report.model import Drawings, Note, Table
from pipeline.report.side_by_side import (
    ReportError,
    calibrations,
    common_benchmarks,
    costs,
    positions,
    side_by_side,
)


def pair(**changes):
    """Evaluations a:v0 and b:v3; ``changes`` are those of the second."""
    return [
        evaluation(tiny_summary.full(), "a:v0"),
        evaluation(tiny_summary.summary("other", **changes), "b:v3"),
    ]


def rows(table, columns=slice(None)):
    return [[cell.plain for cell in row][columns] for row in table.rows]


def tables(section):
    return [block for block in section.blocks if isinstance(block, Table)]


def test_each_benchmark_has_a_row_of_every_evaluation():
    section = side_by_side(pair(levels={"alpha": 0.9, "zeta": 1.2}), "two drafts")
    (table,) = tables(section)
    assert (table.caption, table.strong, table.names) == ("two drafts", {4, 5}, 2)
    assert rows(table, slice(4)) == [
        ["zeta", "a:v0", "4", "2.50 [2.40, 2.53]"], ["zeta", "b:v3", "4", "2.20 [2.10, 2.23]"],
        ["alpha", "a:v0", "4", "1.70 [1.60, 1.73]"], ["alpha", "b:v3", "4", "1.90 [1.80, 1.93]"],
        ["macro average", "a:v0", "8", "2.10 [2.00, 2.13]"], ["macro average", "b:v3", "8", "2.05 [1.95, 2.08]"],
    ]  # fmt: skip
    assert table.rows[3][3].data["key"] == "alpha/accepted_length"
    assert table.rows[3][3].data["evaluation"] == "b:v3"
    (drawn,) = [block for block in section.blocks if isinstance(block, Drawings)]
    assert list(drawn.legend) == [(0, "a:v0"), (1, "b:v3")]
    assert [chart.title for chart in drawn.charts] == ["Accepted length", "Speedup"]


def test_only_common_benchmarks_are_compared():
    """The average over others is none of theirs."""
    both = pair(levels={"alpha": 0.9})
    section = side_by_side(both)
    (table,) = tables(section)
    assert rows(table, slice(2)) == [["alpha", "a:v0"], ["alpha", "b:v3"]] and table.strong == frozenset()
    assert section.blocks[-1].text.endswith("left out: a:v0: zeta.")
    assert common_benchmarks(both) == ["alpha"]
    (table,) = tables(side_by_side(pair(levels={"alpha": 0.9, "zeta": 1.5, "beta": 1.0})))
    assert [row[0] for row in rows(table)] == ["zeta", "zeta", "alpha", "alpha"]


def test_no_common_benchmark_is_an_error():
    with refused(ReportError, "a:v0", "zeta", "alpha", "b:v3", "beta"):
        common_benchmarks(pair(levels={"beta": 1.0}))


def test_positions_beyond_a_shorter_block_are_dashes():
    section = positions(pair(positions=2))
    (drawn,) = [block for block in section.blocks if isinstance(block, Drawings)]
    assert [chart.title for chart in drawn.charts] == [
        f"{kind}, {name}"
        for name in ("macro average", "zeta", "alpha")
        for kind in ("Survival", "Conditional acceptance")
    ]
    average, zeta = tables(section)[0], tables(section)[2]
    assert rows(average) == [["a:v0", "0.55", "0.37", "0.28"], ["b:v3", "0.55", "0.37", "-"]]
    assert zeta.rows[1][2].data["key"] == "zeta/survival/1"


def test_costs():
    (table,) = tables(costs(pair()))
    assert rows(table)[1] == ["zeta", "b:v3", "3.00", "0.40", "12.3", "33.3", "27.0 %", "73.0 %"]
    assert len(table.rows) == 6


def test_calibrations_are_of_those_that_have_one():
    (table,) = calibrations(pair()).blocks
    assert rows(table, slice(2)) == [["a:v0", "before"], ["a:v0", "after"]]
    (note,) = calibrations([evaluation(tiny_summary.summary())] * 2).blocks
    assert isinstance(note, Note) and note.absent and "evaluate.calibrate=true" in note.text
