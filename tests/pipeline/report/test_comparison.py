"""A comparison of drafters: every number of the page is the JSON's, and each table says what it counts."""

import html_page
import pytest
import tiny_summary

from pipeline.report.comparison import page, sections
from pipeline.report.markdown import markdown
from pipeline.report.model import Drawings, Table
from pipeline.report.page import html


@pytest.fixture
def result():
    return tiny_summary.comparison()


def test_the_page_says_what_the_json_says(result) -> None:
    read = html_page.Page(html(page(tiny_summary.comparison_record(result))))
    assert read.faults == []
    assert html_page.wrong_numbers(read, {"": result | {"benchmarks": {}}}) == []
    keys = {key for _, key in read.numbers}
    for key in (
        "table/rows/zeta/accepted_length/mtp", "table/rows/macro average/ratio/mtp", "table/speed/mtp/speedup",
        "table/conditional/dspark/1", "figures/block/accepted_length/dspark/1", "variants/mtp/heldout_length",
    ):  # fmt: skip
        assert key in keys
    assert "table/rows/zeta/ratio/dspark" not in keys  # the first drafter is not compared with itself


def test_the_tables_as_text(result) -> None:
    lines = markdown("t", sections(tiny_summary.comparison_record(result))).splitlines()
    for line in (
        "| benchmark | prompts | dspark | mtp |",
        "| macro average | 8 | 2.00 [1.90, 2.10] | 1.50 [1.40, 1.60] |",
        "| macro average | 0.75 [0.70, 0.80] |",
        "| mtp | 30 % | 7.00 | 4.0 | 40.0 | 20.0 | - |",
        "| dspark | 0.90 | 0.80 | - |",
        "| mtp | 0.70 | - | - |",  # drafts less
        "Fig. 4: accepted length by block size (macro average of 3 prompts)",
        "| dspark | 1.80 [1.70, 1.90] | 2.00 [1.90, 2.10] |",
        "| dspark | 20 % of 5.0 ms | 50 % of 8.0 ms |",
        "| dspark_block4 | t_dspark_block4:v0 | t_dspark_block4:v1 | 12,345 | 1.99 |",
    ):
        assert line in lines
    zeta, alpha = (f"| {name} | 4 | 2.00 [1.90, 2.10] | 1.50 [1.40, 1.60] |" for name in ("zeta", "alpha"))
    assert lines.index(zeta) < lines.index(alpha)


def test_a_figure_without_latency_is_one_drawing_and_one_table(result) -> None:
    result["figures"]["block"]["latency"] = None
    (figure,) = [
        section
        for section in sections(tiny_summary.comparison_record(result))
        if section.anchor == "figure-block"
    ]
    drawn, table = figure.blocks
    assert isinstance(drawn, Drawings) and [chart.title for chart in drawn.charts] == ["Accepted length"]
    assert isinstance(table, Table) and list(table.columns) == ["drafter.block_size", "4", "8"]
    assert [cell.plain for cell in table.rows[0]] == ["dspark", "1.80 [1.70, 1.90]", "2.00 [1.90, 2.10]"]


def test_what_was_equal_is_told(result) -> None:
    text = markdown("t", sections(tiny_summary.comparison_record(result)))
    assert "every variant: 9 steps of 4 sequences with 5 blocks each, seed 0" in text
    assert "temperature 0.0; at most 64 new tokens; cpu, bfloat16, batch of one" in text
