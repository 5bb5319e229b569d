"""Charts: axes, what is drawn where, and what has no value."""

import re

import pytest

from pipeline.report.svg import (
    Axis,
    PlottedPoint,
    Series,
    intervals,
    linear,
    plot,
    powers,
    series,
    shares,
    stacks,
)


def told(value, low=None, high=None):
    return {"value": value, "interval": None if low is None else [low, high]}


def test_ticks_are_round_and_hold_the_values():
    axis = linear("tokens/s", [3.2, 17.9])
    assert list(axis.ticks) == [0.0, 5.0, 10.0, 15.0, 20.0]
    assert axis.share(5.0) == 0.25
    assert list(linear("x", []).ticks) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert linear("x", [300_000]).text(100_000) == "100k"
    assert linear("x", [9.0]).text(2.5) == "2.5"


def test_powers_lie_at_equal_distances():
    axis = powers("concurrency", [4, 1, 2, 4])
    assert list(axis.ticks) == [1, 2, 4]
    assert [axis.share(value) for value in (1, 2, 4)] == pytest.approx([0, 0.5, 1])
    assert list(powers("c", [2**n for n in range(12)]).ticks) == [1, 2, 8, 32, 128, 512, 2048]
    assert powers("c", [8]).share(8) == 0.5


def test_a_line_with_its_interval():
    """Of a chart 100 wide: 25 to 88 across, 10 to 60 down."""
    line = series("d", 1, (1, 2, 3), [told(1.0, 0.8, 1.0), told(0.5, 0.4, 0.6), told(None)])
    drawn = plot("t", [line], Axis("k", (1.0, 3.0)), shares("p"), size=(100, 100))
    assert '<polyline class="line c1" points="25.0,10.0 56.5,35.0"/>' in drawn
    assert '<polygon class="band c1" points="25.0,10.0 56.5,30.0 56.5,40.0 25.0,20.0"/>' in drawn
    assert "<title>d, 2: 0.500 [0.400, 0.600]</title>" in drawn
    assert drawn.count('class="mark c1"') == 2  # not the one without a value
    assert '<title id="t' in drawn and "p over k. d: 1 1, 2 0.5</desc>" in drawn


def test_series_differ_in_colour_and_shape():
    lines = [Series(str(n), n, [PlottedPoint(0.5, 0.5)]) for n in range(12)]
    drawn = plot("t", lines, shares("x"), shares("y"))
    marks = re.findall(r'class="mark (c\d)" d="([^"]+)"', drawn)
    assert len(set(marks)) == 12


def test_intervals_by_group():
    groups = [("zeta", [told(1.5, 1.0, 2.0), told(2.0)]), ("alpha", [told(None), told(1.0, 1.0, 1.0)])]
    drawn = intervals("t", groups, ["a", "b"], Axis("times", (1.0, 2.0)), at=1.0)
    assert drawn.count('class="mark') == 3
    assert 'class="whisker c0" d="M12.0 ' in drawn  # 12 to 336
    assert (
        "zeta, a: 1.50 [1.00, 2.00]; zeta, b: 2.00; alpha, a: unknown; alpha, b: 1.00 [1.00, 1.00]" in drawn
    )
    alone = intervals("t", [("zeta", [told(1.5, 1.0, 2.0)])], [""], Axis("times", (1.0, 2.0)), at=1.0)
    assert ">1.50 [1.00, 2.00]</text>" in alone


def test_bars_end_to_end_to_one_scale():
    drawn = stacks("t", [("zeta", [("draft", 10.0), ("verify", 30.0)]), ("alpha", [("draft", 20.0)])], "ms")
    widths = re.findall(r'x="([\d.]+)" y="\d+" width="([\d.]+)"', drawn)
    assert widths == [("12.0", "84.0"), ("96.0", "252.0"), ("12.0", "168.0")]
    assert "<title>zeta, verify: 30.0 ms</title>" in drawn and ">40.0 ms</text>" in drawn


def test_text_is_escaped():
    drawn = plot("<b>", [Series("<i>", 0, [PlottedPoint(1, 1, text="<u>")])], shares("<x>"), shares("&y"))
    assert not re.search("<[biux]>", drawn)
    assert "&lt;x&gt;" in drawn and "&amp;y" in drawn
