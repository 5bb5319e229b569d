"""Figures as text, with intervals and without a value."""

from types import SimpleNamespace

import pytest

from data_specs.results.summary import Figure
from pipeline.report.model import Metric, cells, number, with_interval

NOTHING = Figure(None, None)


@pytest.mark.parametrize(
    "figure,text",
    [
        (Figure(2.134, (1.98, 2.271)), "2.13 [1.98, 2.27]"),
        (Figure(2.134, None), "2.13"),
        (NOTHING, "-"),
    ],
)
def test_with_interval(figure, text):
    assert with_interval(figure) == text


def test_numbers():
    assert number(Figure(0.614, None), "{:.0%}") == "61 %"
    assert number(NOTHING, "{:.0%}") == "-"
    assert number(Figure(3.14159, None), "{:.1f}") == "3.1"


def test_a_cell_is_exact_on_the_page_and_brief_in_text():
    found = SimpleNamespace(
        a=Figure(0.5123, (0.4, 0.6)), b=[Figure(0.25, None), Figure(1.0, None)], c=NOTHING
    )
    metrics = (Metric("A", "a", "{:.1%}", "{:.0%}", interval=True), Metric("B", "b"), Metric("C", "c"))
    one, two, three = cells("zeta", found, metrics)
    assert (one.text, one.aside, one.plain) == ("51.2 %", "[40.0, 60.0]", "51 % [40, 60]")
    assert one.data == {"key": "zeta/a", "value": "0.5123", "low": "0.4", "high": "0.6"}
    assert (two.plain, three.plain) == (".25 1.00", "-")
