"""Drawings: ticks, what is drawn where and in which colour, what the signs say, and what has no value."""

import re
from xml.etree import ElementTree

import pytest

from data_specs.results.summary import Figure
from pipeline.report.model import (
    Axis,
    Bars,
    Drawings,
    Lines,
    PlottedPoint,
    Series,
    Whiskers,
    powers,
    series,
    shares,
)
from pipeline.report.plot import LIGHT, png, svg, ticks


def told(value, low=None, high=None):
    return Figure(value, None if low is None else (low, high))


def signs(drawn):
    """(style, text) of everything that says a value."""
    root = ElementTree.fromstring(drawn)
    return [
        (e.get("style"), e.find("title").text)
        for e in root.iter()
        if e is not root and e.find("title") is not None
    ]


def line(label="d", text=""):
    return Lines("t", [Series(label, 0, [PlottedPoint(0.5, 0.5, text=text)])], shares("x"), shares("y"))


def test_ticks_are_round_and_hold_the_values():
    assert ticks(Axis("tokens/s"), [3.2, 17.9]) == [0.0, 5.0, 10.0, 15.0, 20.0]
    assert ticks(Axis("x"), []) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(Axis("x", least=1.0), [1.2, 1.4])[0] == 1.0
    assert ticks(Axis("x", log=True), [2.5, 60]) == [2, 5, 10, 20, 50, 100]
    assert ">100k</text>" in svg(
        Lines("t", [Series("d", 0, [PlottedPoint(1, 300_000)])], shares("x"), Axis("y"))
    )


def test_powers_are_thinned():
    assert list(powers("concurrency", [4, 1, 2, 4]).ticks) == [1, 2, 4]
    assert list(powers("c", [2**n for n in range(12)]).ticks) == [1, 2, 8, 32, 128, 512, 2048]
    assert "<svg" in svg(Lines("t", [Series("d", 0, [PlottedPoint(8, 0.5)])], powers("c", [8]), shares("y")))


def test_a_line_with_its_interval():
    """From 46 to 344 across, from 200 (nought) to 10 (one) up."""
    figures = [told(1.0, 0.8, 1.0), told(0.5, 0.4, 0.6), told(None)]
    drawn = svg(Lines("t", [series("d", 1, (1, 2, 3), figures)], Axis("k", (1, 2, 3)), shares("p")))
    assert 'd="M 46 10 L 195 105" style="fill: none; stroke: var(--c1)' in drawn
    assert 'd="M 46 10 L 195 86 L 195 124 L 46 48 z" style="fill: var(--c1); opacity: 0.13' in drawn
    assert signs(drawn) == [
        ("fill: var(--c1)", "d, 1: 1.000 [0.800, 1.000]"), ("fill: var(--c1)", "d, 2: 0.500 [0.400, 0.600]"),
    ]  # fmt: skip
    assert "p over k" in drawn and drawn.index("<title") < drawn.index("<desc") < drawn.index("<path")


def test_series_differ_in_colour_and_shape():
    lines = [Series(str(n), n, [PlottedPoint(0.5, 0.5, text=str(n))]) for n in range(12)]
    root = ElementTree.fromstring(svg(Lines("t", lines, shares("x"), shares("y"))))
    shapes = {e.get("id"): e.get("d") for e in root.iter("path") if e.get("id")}
    found = {
        (e.get("style"), shapes[e.get("href")[1:]]) for e in root.iter("use") if e.find("title") is not None
    }
    assert len(found) == 12


def test_intervals_by_group():
    groups = [("zeta", [told(1.5, 1.0, 2.0), told(2.0)]), ("alpha", [told(None), told(1.0, 1.0, 1.0)])]
    drawn = svg(Whiskers("t", groups, ["a", "b"], Axis("times", (1.0, 2.0)), at=1.0))
    assert [text for _, text in signs(drawn)] == [
        "zeta, a: 1.50 [1.00, 2.00]", "zeta, b: 2.00", "alpha, b: 1.00 [1.00, 1.00]",
    ]  # fmt: skip
    assert 'd="M 12 35 L 336 35"' in drawn  # the whole width
    alone = svg(Whiskers("t", [("zeta", [told(1.5, 1.0, 2.0)])], [""], Axis("times", (1.0, 2.0)), at=1.0))
    assert ">1.50 [1.00, 2.00]</text>" in alone


def test_bars_end_to_end_to_one_scale():
    bars = Bars("t", [("zeta", [("draft", 10.0), ("verify", 30.0)]), ("alpha", [("draft", 20.0)])], "ms")
    drawn = svg(bars)
    starts = re.findall(r'd="M ([\d.]+) [\d.]+ L ([\d.]+) [^"]*" style="fill: var\(--c\d\)', drawn)
    assert starts == [("12", "96"), ("96", "348"), ("12", "180")]
    assert [text for _, text in signs(drawn)] == [
        "zeta, draft: 10.0 ms",
        "zeta, verify: 30.0 ms",
        "alpha, draft: 20.0 ms",
    ]
    assert ">40.0 ms</text>" in drawn
    assert "<svg" in svg(Bars("t", [], "ms"))


def test_text_is_text():
    """Neither markup, nor formulas, nor what XML cannot hold."""
    drawn = svg(line("<i>", "<u>$x$\x00!"))
    assert [text for _, text in signs(drawn)] == ["<u>$x$ !"]
    hostile = Lines("<b>", [], shares("<x> $a_b$ $"), shares("&y"))
    assert "&lt;x&gt; $a_b$ $" in svg(hostile) and "&amp;y" in svg(hostile)


def test_an_svg_belongs_to_a_page_of_many():
    drawn = svg(line())
    assert drawn == svg(line())
    assert not any(
        word in drawn for word in ("<style", "font-family", "xmlns", "clip-path", "<metadata", "#0b5cad")
    )
    other = svg(Lines("other", line().series, shares("x"), shares("y")))
    ids = [re.findall(r' id="([^"]+)"', each) for each in (drawn, other)]
    assert len(ids[0]) == 3 and not set(ids[0]) & set(ids[1])
    assert set(re.findall(r"var\(--(\w+)\)", drawn)) <= set(LIGHT)


@pytest.mark.parametrize(("count", "size"), [(1, (750, 550)), (2, (1500, 595)), (5, (2250, 1145))])
def test_a_png_holds_the_drawings_side_by_side(tmp_path, count, size):
    legend = [(n, f"_{n}") for n in range(count)]
    png(tmp_path / "a.png", Drawings([line()] * count, legend))
    made = (tmp_path / "a.png").read_bytes()
    assert made.startswith(b"\x89PNG")
    assert (int.from_bytes(made[16:20], "big"), int.from_bytes(made[20:24], "big")) == size
