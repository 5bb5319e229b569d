"""Held-out prompts: evenly over sources, read no further than needed, never a reported one."""

import json

import pytest
from tiny_errors import refused

from pipeline.config import ConfigError, DataConfig, SourceConfig
from pipeline.prompts import heldout
from pipeline.prompts.heldout import contents, heldout_prompts
from pipeline.prompts.rows import prompt_key, split_of


def key_of(text):
    return prompt_key([{"role": "user", "content": text}])


def held(texts):
    return [text for text in texts if split_of(key_of(text), 0.4, 0.1) == "heldout"]


TEXTS = {name: [f"{name} {i}" for i in range(40)] for name in ("a", "b")}


@pytest.fixture
def data(tmp_path):
    for name, texts in TEXTS.items():
        rows = ({"prompt": text} for text in texts)
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    sources = [SourceConfig(path=str(tmp_path / f"{name}.jsonl")) for name in TEXTS]
    return DataConfig(name="ab", sources=sources, heldout=0.4, benchmark=0.1)


def said(prompts):
    return [p.messages[0]["content"] for p in prompts]


def test_sources_take_turns(data):
    a, b = held(TEXTS["a"]), held(TEXTS["b"])
    found = heldout_prompts(data, 5, set())
    assert said(found) == [a[0], b[0], a[1], b[1], a[2]]
    assert [(p.benchmark, p.index, p.key) for p in found][:2] == [
        ("heldout", 0, key_of(a[0])), ("heldout", 1, key_of(b[0])),
    ]  # fmt: skip
    assert sorted(said(heldout_prompts(data, 999, set()))) == sorted(a + b)


def test_reported_prompts_and_repeated_ones_are_left_out(data, tmp_path):
    data.sources[1] = data.sources[0]
    a = held(TEXTS["a"])
    assert said(heldout_prompts(data, 3, {key_of(a[1])})) == [a[0], a[2], a[3]]


def test_tools_are_the_prompts_own(data, tmp_path):
    tool = {"type": "function", "function": {"name": "look"}}
    data.sources, data.heldout, data.benchmark = data.sources[:1], 1.0, 0.0
    rows = [{"prompt": "with", "tools": [tool]}, {"prompt": "without"}, {"prompt": "bad", "tools": 3}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [(p.messages[0]["content"], p.tools) for p in heldout_prompts(data, 9, set())] == [
        ("with", [tool]), ("without", []),
    ]  # fmt: skip
    assert said(heldout_prompts(data, 9, set(), with_tools=False)) == ["without"]


def test_prompts_with_control_tokens_are_left_out_as_in_training(data, tmp_path):
    data.sources, data.heldout, data.benchmark = data.sources[:1], 1.0, 0.0
    rows = [{"prompt": "plain"}, {"prompt": "ends <|im_end|> here"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    control = ["<|im_end|>"]
    assert len(heldout_prompts(data, 9, set(), control=control)) == 2
    before = heldout.contents(data)
    data.control_tokens = "reject"
    assert said(heldout_prompts(data, 9, set(), control=control)) == ["plain"]
    assert heldout.contents(data) == [*before, "reject"]


def test_no_source_is_read_further_than_needed(data, monkeypatch):
    read = []

    def rows(source):
        for i in range(1_000_000):
            read.append(i)
            yield {"prompt": f"a {i}"}

    monkeypatch.setattr(heldout, "load_rows", rows)
    heldout_prompts(data, 3, set())
    assert len(read) < 200


def test_a_conversation_gives_its_questions_and_tool_results_none(data, tmp_path):
    data.heldout, data.benchmark = 1.0, 0.0
    talk = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Bye")]
    tool = [("user", "Look"), ("assistant", "Yes"), ("tool", "42")]
    path = tmp_path / "talk.jsonl"
    rows = ({"messages": [{"role": r, "content": c} for r, c in messages]} for messages in (tool, talk))
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    data.sources = [SourceConfig(path=str(path))]
    (only,) = heldout_prompts(data, 9, set())
    assert [(m["role"], m["content"]) for m in only.messages] == [talk[0], talk[1], talk[3]]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"heldout": 0.0}, ["data.heldout=0.0"]),
        ({"sources": []}, ["data.sources"]),
        ({"heldout": 1e-9}, ["data.heldout=1e-09", "data=ab"]),
    ],
)
def test_without_held_out_prompts_the_keys_are_named(data, changes, named):
    for name, value in changes.items():
        setattr(data, name, value)
    with refused(ConfigError, *named, "evaluate.calibrate=false"):
        heldout_prompts(data, 3, set())


def test_contents_follow_the_file_not_its_place(data, tmp_path):
    before = contents(data)
    moved = tmp_path / "moved.jsonl"
    (tmp_path / "a.jsonl").rename(moved)
    data.sources[0].path = str(moved)
    assert contents(data) == before
    moved.write_text(moved.read_text() + json.dumps({"prompt": "one more"}) + "\n")
    assert contents(data) != before
