"""Sections of one evaluation: their cells, what they draw, and what they say where something is missing."""

import pytest
import tiny_summary
from tiny_summary import evaluation, told

from pipeline.report.figures import (
    benchmarks,
    by_position,
    contexts,
    cost,
    losslessness,
    overview,
    sampling,
    steps,
    total,
    totals,
)
from pipeline.report.model import Drawings, Note, Table


def blocks(section, kind):
    return [block for block in section.blocks if isinstance(block, kind)]


def texts(section, absent=False):
    return [note.text for note in blocks(section, Note) if note.absent == absent]


def rows(table):
    return [[cell.plain for cell in row] for row in table.rows]


def test_the_main_table():
    (table,) = blocks(section := benchmarks(evaluation(tiny_summary.summary())), Table)
    assert list(table.columns) == [
        "benchmark", "prompts", "accepted length", "acceptance", "acceptance by position", "tokens/s", "plain",
        "speedup",
    ]  # fmt: skip
    assert rows(table) == [
        ["zeta", "4", "2.50 [2.40, 2.53]", "50 %", ".75 .50 .38", "30.0", "11.0", "1.21 [1.11, 1.25]"],
        ["alpha", "4", "1.70 [1.60, 1.73]", "23 %", ".35 .23 .17", "14.0", "11.0", "1.10 [1.00, 1.13]"],
        ["macro average", "8", "2.10 [2.00, 2.13]", "37 %", ".55 .37 .28", "22.0", "11.0", "1.16 [1.06, 1.19]"],
    ]  # fmt: skip
    assert table.strong == {2} and "acceptance by position" not in table.on_page.columns
    (drawn,) = blocks(section, Drawings)
    assert [chart.title for chart in drawn.charts] == ["Accepted length", "Speedup"]
    assert [name for name, _ in drawn.charts[0].groups] == ["zeta", "alpha"]
    assert texts(section, absent=True) == []


def test_one_benchmark_has_no_average():
    (table,) = blocks(benchmarks(evaluation(tiny_summary.summary(levels={"zeta": 1.5}))), Table)
    assert [row[0] for row in rows(table)] == ["zeta"] and table.strong == frozenset()


def test_without_plain_decoding_there_is_no_speedup():
    summary = tiny_summary.summary()
    for found in (summary["macro"], *(b["metrics"] for b in summary["benchmarks"].values())):
        found["speedup"] = found["plain_tokens_per_second"] = told(None)
    section = benchmarks(evaluation(summary))
    assert [row[-2:] for row in rows(blocks(section, Table)[0])] == [["-", "-"]] * 3
    assert [chart.title for chart in blocks(section, Drawings)[0].charts] == ["Accepted length"]
    (how,) = texts(section, absent=True)
    assert "evaluate.baseline=true" in how


def test_a_benchmark_without_answers_is_a_row_of_dashes():
    summary = tiny_summary.summary()
    summary["benchmarks"]["zeta"] |= {"counts": {"prompts": 0, "too_long": 4}, "metrics": None, "finish": {}}
    one = evaluation(summary)
    assert rows(blocks(benchmarks(one), Table)[0])[0] == ["zeta", "0", *"------"]
    (answers,) = blocks(losslessness(one), Table)
    assert rows(answers) == [["zeta", *"----", "4"], ["alpha", "4", "100.0 %", "3", "1", "0"]]
    summary["benchmarks"]["alpha"] |= {"metrics": None}
    one = evaluation(summary | {"macro": None})
    assert len(rows(blocks(benchmarks(one), Table)[0])) == 2 and blocks(benchmarks(one), Drawings) == []


def test_the_effective_sampler_is_said():
    """Pitfall 40."""
    sampler = {"temperature": 0.7, "top_p": 0.9, "top_k": None, "min_p": None, "draft_sampling": "greedy"}
    summary = tiny_summary.summary(sampler=sampler, threshold=0.3, thinking=False, batch=2)
    how, _ = texts(benchmarks(evaluation(summary | {"calibration": tiny_summary.calibration()})))
    said = "sampler: temperature 0.7, top_p 0.9, draft_sampling greedy; at most 64 new tokens; thinking False"
    assert sampling(tiny_summary.record(summary).facts) == said
    assert how.startswith(
        f"{said}; threshold 0.3 on calibrated confidences; cpu, float32, 2 prompts at a time"
    )
    how, _ = texts(benchmarks(evaluation(tiny_summary.summary())))
    assert how.endswith("threshold 0.0; cpu, float32, one prompt at a time")


def test_an_overview_draws_accepted_length_and_speedup():
    metrics = evaluation(tiny_summary.summary()).named["zeta"]
    length, speedup = overview([("zeta", [metrics, metrics])], ["a", "b"])
    assert (length.title, speedup.title, speedup.labels, speedup.at) == (
        "Accepted length", "Speedup", ["a", "b"], 1.0,
    )  # fmt: skip
    assert speedup.groups == [("zeta", [metrics.speedup] * 2)]


def test_positions_are_drawn_and_told_below():
    summary = tiny_summary.summary()
    summary["benchmarks"]["alpha"]["metrics"] |= {"survival": [told(0.4)], "conditional": [told(0.4)]}
    section = by_position(evaluation(summary))
    (drawn,) = blocks(section, Drawings)
    assert list(drawn.legend) == [(0, "zeta"), (1, "alpha")]
    survival, conditional = drawn.charts
    assert [[(p.x, p.y) for p in line.points] for line in survival.series] == [
        [(1, 0.75), (2, 0.5), (3, 0.375)], [(1, 0.4)],
    ]  # fmt: skip
    assert [p.x for p in conditional.series[0].points] == [1, 2]  # the third cannot be told
    first, second = blocks(section, Table)
    assert list(first.columns) == ["benchmark", "k = 1", "k = 2", "k = 3"]
    assert rows(first)[:2] == [
        ["zeta", "0.75", "0.50", "0.38"],
        ["alpha", "0.40", "-", "-"],
    ]  # its block is shorter
    assert rows(second)[0] == ["zeta", "0.75", "0.75", "-"]


def test_the_cost_of_a_round():
    section = cost(evaluation(tiny_summary.summary()))
    (table,) = blocks(section, Table)
    assert rows(table)[0] == ["zeta", "3.00", "0.40", "12.3", "33.3", "27.0 %", "73.0 %"]
    (drawn,) = blocks(section, Drawings)
    assert drawn.charts[0].rows[0] == ("zeta", [("draft", 12.3456789), ("verify", 100 / 3)])
    (said,) = texts(section)
    assert "at a time" not in said
    (said,) = texts(cost(evaluation(tiny_summary.summary(batch=16))))
    assert "16 prompts were answered at a time" in said
    summary = tiny_summary.summary()
    summary["benchmarks"]["zeta"]["metrics"]["draft_ms"] = told(None)
    (drawn,) = blocks(cost(evaluation(summary)), Drawings)
    assert [name for name, _ in drawn.charts[0].rows] == ["alpha"]


def test_contexts_are_told_by_their_first_and_last_position():
    (table,) = blocks(contexts(evaluation(tiny_summary.summary())), Table)
    assert rows(table) == [
        ["0 to 511", "8", "30", "2.10 [2.00, 2.13]", "36.7 %", "12.3", "33.3"],
        ["32,768 and more", "1", "4", "1.20 [1.10, 1.23]", "6.7 %", "12.3", "33.3"],
    ]
    assert table.rows[1][2].data == {"key": "context/1/rounds", "value": "4"}


def test_steps_a_second():
    section = steps(evaluation(tiny_summary.full()))
    rates, milliseconds = blocks(section, Table)
    assert list(rates.columns) == ["tokens", "context 128", "context 512"]
    assert [row[1] for row in rows(rates)] == [
        "81.3 [76.3, 83.3]", "40.7 [38.2, 41.7]", "27.1 [25.4, 27.8]",
    ]  # fmt: skip
    assert [row[2] for row in rows(milliseconds)] == ["12.3", "24.6", "36.9"]
    assert milliseconds.rows[1][2].data == {"key": "profile/contexts/1/points/1/seconds", "value": "0.0246"}
    (drawn,) = blocks(section, Drawings)
    (chart,) = drawn.charts
    assert chart.x.ticks == [1, 2, 3] and [line.label for line in chart.series] == [
        "context 128",
        "context 512",
    ]
    assert "at most 8 tokens" in texts(section)[0]  # an anchor and seven drafts
    (how,) = texts(steps(evaluation(tiny_summary.summary())), absent=True)
    assert "evaluate.profile=true" in how


@pytest.mark.parametrize(
    ("facts", "same", "words", "warns"),
    [
        ({}, 1.0, "They all do.", False),
        ({}, 0.75, "Here some differ.", True),
        ({"dtype": "bfloat16"}, 0.75, "nearly equally likely", False),
        ({"sampler": {"temperature": 1.0}}, 0.0, "drawn at random", False),
        ({}, None, "evaluate.baseline=true makes them", False),
    ],
)
def test_losslessness_is_judged_by_what_was_to_be_expected(facts, same, words, warns):
    summary = tiny_summary.summary(**facts)
    summary["benchmarks"]["zeta"]["metrics"]["same_answers"] = told(same)
    judged = losslessness(evaluation(summary)).blocks[0]
    assert words in judged.text and judged.warns == warns


def test_totals_are_over_all_benchmarks():
    summary = tiny_summary.summary()
    summary["benchmarks"]["zeta"]["counts"] = {"answers": 4, "too_long": 3}
    summary["benchmarks"]["zeta"]["metrics"]["same_answers"] = told(0.5)
    assert (
        total(tiny_summary.record(summary), "answers") == 8
        and total(tiny_summary.record(summary), "rounds") == 17
    )  # zeta has none
    expected = [
        "answers equal to those of the plain one: 75.0 %",
        "answers cut at the length limit: 2 of 8",
        "prompts longer than the limit, left out: 3",
    ]
    assert totals(tiny_summary.record(summary), "the plain one", "the limit") == expected
    summary["facts"]["sampler"] = {"temperature": 1.0}  # draws differ, as they should
    assert totals(tiny_summary.record(summary), "the plain one", "the limit") == expected[1:]
    drawn = evaluation(tiny_summary.summary(sampler={"temperature": 1.0})).summary
    assert totals(drawn, "p", "l") == [expected[1]]


def test_prompts_that_the_draft_was_trained_on_are_counted():
    section = benchmarks(evaluation(tiny_summary.summary(trained={"zeta": 3, "alpha": 0})))
    (table,) = blocks(section, Table)
    assert [row[1] for row in rows(table)] == ["4 (3 trained on)", "4", "8"]
    assert (table.rows[0][1].text, table.rows[0][1].aside) == ("4", "3 trained on")
    (warning,) = [note for note in blocks(section, Note) if note.warns]
    assert "zeta" in warning.text and "3 of these 4" in warning.text
    unknown = benchmarks(evaluation(tiny_summary.summary(trained=None)))
    assert [row[1] for row in rows(blocks(unknown, Table)[0])] == ["4", "4", "8"]
