"""Figures as text, with intervals and without a value."""

import pytest

from pipeline.report.model import Metric, cells, number, with_interval

NOTHING = {"value": None, "interval": None}


@pytest.mark.parametrize(
    "figure,text",
    [
        ({"value": 2.134, "interval": [1.98, 2.271]}, "2.13 [1.98, 2.27]"),
        ({"value": 2.134, "interval": None}, "2.13"),
        (NOTHING, "-"),
    ],
)
def test_with_interval(figure, text):
    assert with_interval(figure) == text


def test_numbers():
    assert number({"value": 0.614, "interval": None}, "{:.0%}") == "61 %"
    assert number(NOTHING, "{:.0%}") == "-"
    assert number({"value": 3.14159, "interval": None}, "{:.1f}") == "3.1"


def test_a_cell_is_exact_on_the_page_and_brief_in_text():
    found = {
        "a": {"value": 0.5123, "interval": [0.4, 0.6]},
        "b": [{"value": 0.25}, {"value": 1.0}],
        "c": NOTHING,
    }
    metrics = (Metric("A", "a", "{:.1%}", "{:.0%}", interval=True), Metric("B", "b"), Metric("C", "c"))
    one, two, three = cells("zeta", found, metrics)
    assert (one.text, one.aside, one.plain) == ("51.2 %", "[40.0, 60.0]", "51 % [40, 60]")
    assert one.data == {"key": "zeta/a", "value": "0.5123", "low": "0.4", "high": "0.6"}
    assert (two.plain, three.plain) == (".25 1.00", "-")
