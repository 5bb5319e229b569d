"""What a server does beside what the draft's own evaluation promised, on summaries written by hand."""

import pytest
import tiny_summary
from tiny_summary import evaluation

from pipeline.report.model import Note, Table
from pipeline.report.served import figures, sections

FACTS = {
    "device": "vllm 0.32.0", "server": "http://127.0.0.1:8000", "model": "tiny", "plain_server": None,
    "plain_model": None, "note": "three drafts",
}  # fmt: skip


def promised(**facts):
    told = {"summary": tiny_summary.summary(levels={"zeta": 1.6}, **facts), "created": tiny_summary.CREATED,
            "packages": {"torch": "2.13.0"}, "revision": None, "fingerprint": "f" * 64}  # fmt: skip
    return told | {"reference": "tiny_dspark:v2"}


def served(beside=None, **changes):
    """The summary of a server; ``changes`` are facts."""
    summary = tiny_summary.summary(levels={"zeta": 1.5}, **(FACTS | changes))
    summary["benchmarks"]["zeta"]["counts"] |= {"drafted": 51, "accepted": 23}
    return summary | {"context": [], "served": {"steps_told": True, "past_end": 0, "promised": beside}}


def tables(section):
    return [
        [[cell.plain for cell in row] for row in block.rows]
        for block in section.blocks
        if isinstance(block, Table)
    ]


def notes(section, **having):
    found = [block for block in section.blocks if isinstance(block, Note)]
    return [n.text for n in found if all(getattr(n, name) == value for name, value in having.items())]


def test_promised_and_served_have_a_row_each():
    benchmarks, counted, curves = figures(evaluation(served(promised()), "s:v0"))
    assert benchmarks.title == "Promised and served"
    assert [row[:4] for row in tables(benchmarks)[0]] == [
        ["zeta", "promised", "4", "2.60 [2.50, 2.63]"], ["zeta", "served", "4", "2.50 [2.40, 2.53]"],
    ]  # fmt: skip
    assert notes(counted, warns=True) == [] and curves.anchor == "positions"
    assert [row[0] for row in tables(curves)[0]] == ["promised", "served"]


def test_what_is_missing_is_said_on_the_page():
    benchmarks, *_ = figures(evaluation(served()))
    assert benchmarks.title == "Served" and [row[1] for row in tables(benchmarks)[0]] == ["served"]
    promise, speedup = notes(benchmarks, absent=True)
    assert "draft=NAME" in promise and "plain_server=URL" in speedup
    both = figures(evaluation(served(promised(), plain_server="http://p", plain_model="m")))[0]
    assert notes(both, absent=True) == []


@pytest.mark.parametrize(
    ("facts", "differ"),
    [({}, None), ({"max_new_tokens": 9, "thinking": True}, "max_new_tokens 9 (served: 64), thinking True")],
)
def test_settings_that_differ_from_the_promised_ones_are_told(facts, differ):
    lines = notes(figures(evaluation(served(promised(**facts))))[0], absent=False)
    assert "vllm 0.32.0 at http://127.0.0.1:8000 (tiny); plain: not asked; three drafts" in lines
    other = [line for line in lines if "other settings" in line]
    assert (differ in other[0]) if differ else other == []


def test_what_the_engine_counted():
    summary = served()
    row = ["zeta", "4", "40", "17", "51", "23", "3", "1", "0", "100.0 %"]
    assert tables(figures(evaluation(summary))[1]) == [[[*row, "-"]]]
    summary["benchmarks"]["zeta"]["counts"] |= {"compared_with_promised": 4, "same_as_promised": 3}
    counted = figures(evaluation(summary))[1]
    assert tables(counted) == [[[*row, "3 of 4"]]]
    assert any("75.0 % of 4" in line for line in notes(counted))
    summary["benchmarks"]["zeta"] |= {
        "metrics": None,
        "counts": {"prompts": 0, "answers": 0, "too_long": 4},
        "finish": {},
    }
    summary["benchmarks"]["alpha"] = tiny_summary.summary()["benchmarks"]["alpha"]
    summary["order"] = ["zeta", "alpha"]
    summary["facts"]["prompts"] = {"zeta": 4, "alpha": 4}
    counts = ["zeta", "0", "0", "0", "0", "0", "0", "0", "4", "-", "-"]
    assert tables(figures(evaluation(summary))[1])[0][0] == counts


def test_counts_that_are_not_to_be_trusted_are_warned_of():
    summary = served()
    summary["served"] |= {"steps_told": False, "past_end": 2}
    rounds, ends = notes(figures(evaluation(summary))[1], warns=True)
    assert "tokens - 1 - accepted" in rounds and ends.startswith("2 answers")


def test_a_server_that_does_not_count_by_position_has_no_curves():
    summary = served() | {"positions": 0}
    for name in ("survival", "conditional"):
        summary["benchmarks"]["zeta"]["metrics"][name] = []
    found = figures(evaluation(summary))
    assert [section.anchor for section in found] == ["benchmarks", "counted"]
    assert len(notes(found[1], absent=True)) == 1


def test_the_lineage_names_both_by_their_references():
    *_, settings, lineage = sections(evaluation(served(promised()), "s:v0"))
    assert list(settings.blocks[0].columns) == ["", "promised", "served"]
    first, second = tables(lineage)
    assert [row[:3] for row in first] == [
        ["evaluation", "tiny_dspark:v2", "f" * 16], ["draft", "tiny_dspark:v2", "d" * 16],
        ["cache", "not in this store", "c" * 16],
    ]  # fmt: skip
    assert second[0][:3] == ["evaluation", "s:v0", "e" * 16]
