import dataclasses

import pytest
from composing import accepted, composed, lacking, out_of_range, refusal

from pipeline.config import DataConfig, SourceConfig, check, section


def test_defaults():
    source = {"path": "a.jsonl", "subset": None, "split": "train", "revision": None, "limit": None}
    assert section(DataConfig("mine", [SourceConfig("a.jsonl")])) == {
        "name": "mine", "sources": [source], "heldout": 0.02, "benchmark": 0.0, "max_prompts": None,
        "control_tokens": "keep",
    }  # fmt: skip


@pytest.mark.parametrize(
    "override",
    [
        "data.heldout=-0.1",
        "data.heldout=1.1",
        "data.benchmark=-0.1",
        "data.benchmark=1.1",
        "data.max_prompts=0",
    ],
)
def test_a_value_out_of_its_range_is_named(override: str):
    assert out_of_range(override) == override


@pytest.mark.parametrize("override", ["data.benchmark=0.0", "data.benchmark=0.9", "data.max_prompts=1"])
def test_the_ends_of_a_range_are_in_it(override: str):
    assert accepted(override) == override


@pytest.mark.parametrize("heldout,benchmark", [(0.6, 0.6), (0.5, 0.5), (0.0, 1.0), (1.0, 0.0)])
def test_something_is_left_to_train_on(heldout: float, benchmark: float):
    overrides = [f"data.heldout={heldout}", f"data.benchmark={benchmark}"]
    assert lacking(refusal(*overrides), overrides) == []


@pytest.mark.parametrize("stage", ["cache", "all"])
def test_a_cache_needs_sources(stage: str):
    assert refusal(f"stage={stage}", "data.sources=[]").startswith("data.sources:")


def test_sources_are_needed_only_where_they_are_read():
    assert composed("stage=train", "data.sources=[]").data.sources == []
    chain = dataclasses.replace(composed(), cache="smollm2_quickstart:v0")
    check(dataclasses.replace(chain, data=dataclasses.replace(chain.data, sources=[])))


def test_a_source_has_a_path_and_a_limit_above_zero():
    sources = "data.sources=[{path: a.jsonl, limit: 1}, {path: b.jsonl, limit: 0}]"
    assert out_of_range(sources) == "data.sources[1].limit=0"
    assert refusal("data.sources=[{split: test}]").startswith("data.sources[0].path:")
