import pytest
from composing import composed, lacking, refusal

from pipeline.config import CompareConfig, FigureConfig, section

SOME = "experiment=compare_drafters"


def test_defaults():
    assert section(CompareConfig()) == {
        "name": "drafters", "drafters": {}, "table": [], "table_overrides": [], "figures": {},
    }  # fmt: skip
    assert section(FigureConfig("t", "drafter.depth")) == {
        "title": "t", "key": "drafter.depth", "values": [], "drafters": [], "latency": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    "overrides,keys",
    [
        (["stage=compare"], ["compare.table:"]),
        ([SOME, "compare.table=[]"], ["compare.table:"]),
        ([SOME, "compare.table=[dspark,nope]"], ["compare.table:", "nope"]),
        ([SOME, "compare.table=[dspark,dspark]"], ["compare.table:", "['dspark', 'dspark']"]),
        ([SOME, "compare.figures.rank.values=[]"], ["compare.figures.rank.values:"]),
        ([SOME, "compare.figures.rank.values=[4,4]"], ["compare.figures.rank.values:", "[4, 4]"]),
        ([SOME, "compare.figures.depth.drafters=[]"], ["compare.figures.depth.drafters:"]),
        ([SOME, "compare.figures.depth.drafters=[nope]"], ["compare.figures.depth.drafters:", "nope"]),
    ],
)
def test_what_cannot_be_compared_is_named(overrides: list[str], keys: list[str]):
    assert lacking(refusal(*overrides), keys) == []


def test_drafters_are_needed_only_where_they_are_compared():
    assert composed("stage=train").compare.table == []


def test_any_number_may_be_varied():
    assert composed(SOME, "compare.figures.rank.values=[-1,0]").compare.figures["rank"].values == [-1, 0]
