import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import SourceConfig
from pipeline.prompts.rows import Rejection, messages_of, prompt_key, split_of, tools_of
from pipeline.prompts.sources import load_rows

USER, BOT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}


def said(*pairs: str) -> list[dict]:
    """from/value messages of (who, what, who, what ...)."""
    return [{"from": who, "value": what} for who, what in zip(pairs[::2], pairs[1::2], strict=True)]


def parts(*items: dict) -> dict:
    return {"messages": [{"role": "user", "content": list(items)}]}


def call(**function: object) -> dict:
    return {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [function]}]}


def nested(depth: int) -> list:
    """A list in a list, ``depth`` times."""
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


def read(path: Path | str, **fields) -> list[dict]:
    return list(load_rows(SourceConfig(path=str(path), **fields)))


# --- one form


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"messages": [USER, BOT]}, [USER, BOT]),
        ({"messages": None, "prompt": "hi"}, [USER]),
        ({"conversations": said("human", "hi", "gpt", "hello")}, [USER, BOT]),
        ({"conversations": said("user", "hi", "assistant", "hello")}, [USER, BOT]),
        ({"conversations": [USER, BOT]}, [USER, BOT]),
        ({"turns": ["hi", "hi"]}, [USER, USER]),
        ({"prompt": "hi"}, [USER]),
        ({"prompt": [USER]}, [USER]),
        ({"instruction": "hi", "input": "", "output": "hello"}, [USER, BOT]),
        ({"instruction": "Add.", "input": "1 2", "output": ""}, [{"role": "user", "content": "Add.\n\n1 2"}]),
        ({"prompt": "hi", "system": "Be brief."}, [{"role": "system", "content": "Be brief."}, USER]),
        (parts({"type": "text", "text": "h"}, {"type": "text", "text": "i"}), [USER]),
        ({"messages": [{"from": "system", "value": "s"}, USER]}, [{"role": "system", "content": "s"}, USER]),
        # Parquet fills absent fields with null
        ({"messages": [USER | {"tool_calls": None}, BOT | {"reasoning_content": None}]}, [USER, BOT]),
        ({"messages": [USER, BOT | {"reasoning": "r"}]}, [USER, BOT | {"reasoning_content": "r"}]),
        ({"prompt": "hi", "response": "hello"}, [USER, BOT]),
        ({"prompt": "hi", "completion": "hello"}, [USER, BOT]),
        ({"prompt": [USER], "completion": [BOT]}, [USER, BOT]),
        ({"question": "hi", "answer": "hello"}, [USER, BOT]),
        ({"question": "hi"}, [USER]),
        ({"chosen": [USER, BOT], "rejected": [USER, BOT]}, [USER, BOT]),
        ({"prompt": "hi", "chosen": [USER, BOT]}, [USER, BOT]),
        ({"prompt": "hi", "chosen": "hello", "rejected": "no"}, [USER, BOT]),
        ({"prompt": [USER], "chosen": [BOT], "rejected": [BOT]}, [USER, BOT]),
        ({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [USER]}}, [USER]),
        ({"body": {"messages": [USER]}, "response": {"body": {"choices": [{"message": BOT}]}}}, [USER, BOT]),
        ({"request": {"messages": [USER]}, "response": {"choices": [{"message": BOT}]}}, [USER, BOT]),
        ({"request": {"body": {"messages": [USER]}}}, [USER]),
    ],
)  # fmt: skip
def test_known_forms(row: dict, expected: list):
    assert messages_of(row) == expected


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "no_known_fields"),
        ({"text": "hi"}, "no_known_fields"),
        ({"messages": None}, "null_content"),
        ({"messages": []}, "empty"),
        ({"turns": []}, "empty"),
        ({"prompt": " \n"}, "empty_content"),
        ({"messages": [USER, {"role": "assistant", "content": ""}]}, "empty_content"),
        ({"messages": [BOT, USER]}, "assistant_first"),
        ({"messages": [{"role": "system", "content": "s"}, BOT]}, "assistant_first"),
        ({"messages": [{"role": "tool", "content": "s"}, USER]}, "tool_first"),
        ({"messages": [{"role": "system", "content": "s"}]}, "system_only"),
        ({"messages": [USER, {"role": "system", "content": "s"}]}, "system_not_first"),
        ({"messages": [{"role": "user", "content": None}]}, "null_content"),
        ({"messages": [{"role": "user"}]}, "null_content"),
        ({"turns": ["hi", None]}, "null_content"),
        ({"messages": [USER, USER]}, "two_users_in_a_row"),
        ({"messages": [USER, BOT, BOT]}, "two_assistants_in_a_row"),
        ({"messages": [USER, {"role": "tool", "content": "s"}]}, "tool_without_a_call"),
        ({"messages": [{"role": "narrator", "content": "s"}]}, "unknown_role"),
        ({"messages": [{"content": "s"}]}, "unknown_role"),
        ({"messages": "hi"}, "not_a_list_of_messages"),
        ({"messages": '{"role": "user", "content": "hi"}'}, "not_a_list_of_messages"),
        ({"messages": "[" * 100_000}, "not_a_list_of_messages"),
        ({"messages": "[3]"}, "not_a_list_of_messages"),
        ({"messages": "[]"}, "empty"),
        ({"messages": '[{"role": "user", "content": "\\ud800"}]'}, "lone_surrogate"),
        ({"messages": ["hi"]}, "not_a_list_of_messages"),
        ({"turns": "hi"}, "not_a_list_of_turns"),
        ({"prompt": 3}, "non_text_content"),
        (parts({"type": "image_url", "image_url": "x"}), "non_text_content"),
        (call(name=3), "bad_tool_call"),
        (call(name="f", arguments="{"), "bad_tool_call"),
        (call(name="f", arguments="[1]"), "bad_tool_call"),
        ({"messages": [USER, {"role": "assistant", "content": "a", "tool_calls": 3}]}, "bad_tool_call"),
        (call(name="f", arguments={"a": nested(900)}), "nested_too_deeply"),
        (call(name="f", arguments={"a": float("nan")}), "number_not_finite"),
        (call(name="f", arguments={"\ud800": 1}), "lone_surrogate"),
        ({"prompt": "\ud800"}, "lone_surrogate"),
        ({"messages": [USER | {"name": "\udc00"}, BOT]}, "lone_surrogate"),
        ({"messages": [USER | {"name": 3}, BOT]}, "non_text_content"),
        ({"chosen": "hello", "rejected": "no"}, "chosen_without_prompt"),
        ({"request": {"input": "hi"}}, "request_without_messages"),
        ({"request": 3}, "request_without_messages"),
        ({"body": {"messages": [USER]}, "response": {"status_code": 500}}, "response_without_choices"),
    ],
)  # fmt: skip
def test_each_reason(row: dict, reason: str):
    """Pitfall 9."""
    assert messages_of(row) == Rejection(reason)


def test_an_unknown_row_tells_what_was_looked_for_and_what_was_found():
    found = messages_of({"text": "hi", "id": 3})
    assert isinstance(found, Rejection) and found.reason == "no_known_fields"
    looked_for, had = found.detail.split("; found ")
    assert {"messages", "prompt", "question", "chosen", "request"} <= set(looked_for.replace(",", "").split())
    assert had == "id, text"


def test_keys_that_parquet_fills_with_null_are_no_arguments(tmp_path: Path):
    """A column of structs has the keys of all its rows."""
    talks = [
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [function]}]}
        for function in (
            {"function": {"name": "weather", "arguments": {"city": "Oslo"}}},
            {"function": {"name": "read", "arguments": {"path": "/a", "lines": 3}}},
        )
    ]
    pq.write_table(pa.Table.from_pylist(talks), tmp_path / "a.parquet")
    found = [messages_of(row)[1]["tool_calls"][0]["function"] for row in read(tmp_path / "a.parquet")]
    assert found == [
        {"name": "weather", "arguments": {"city": "Oslo"}},
        {"name": "read", "arguments": {"path": "/a", "lines": 3}},
    ]


def test_tool_arguments_as_text_and_as_object_are_one(tmp_path: Path):
    """Pitfall 10, also through Parquet, where text keeps the column's type."""
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": [2]}}}]
    as_object = [USER, {"role": "assistant", "content": None, "tool_calls": calls}]
    as_text = json.loads(json.dumps(as_object))
    as_text[1]["tool_calls"][0]["function"]["arguments"] = '{"b": 1,   "a": [2]}'
    expected = [USER, {"role": "assistant", "content": "", "tool_calls": calls}]
    assert messages_of({"messages": as_object}) == messages_of({"messages": as_text}) == expected
    pq.write_table(pa.Table.from_pylist([{"messages": as_text}]), tmp_path / "a.parquet")
    (row,) = read(tmp_path / "a.parquet")
    assert messages_of(row) == expected


@pytest.mark.parametrize(
    "row",
    [
        {"messages": json.dumps([USER, BOT])},
        {"conversations": json.dumps(said("human", "hi", "gpt", "hello"))},
        {"request": {"messages": json.dumps([USER, BOT])}},
    ],
)
def test_messages_may_be_json_text(row: dict):
    assert messages_of(row) == [USER, BOT]


# --- definitions of tools

LOOK = {"name": "look", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}
TOOL = {"type": "function", "function": LOOK}


@pytest.mark.parametrize(
    "row",
    [
        {"tools": [TOOL]},
        {"tools": [LOOK]},
        {"tools": [{"type": "function"} | LOOK]},
        {"tools": json.dumps([TOOL])},
        {"tools": [json.dumps(LOOK)]},
        {"tools": [LOOK | {"parameters": json.dumps(LOOK["parameters"])}]},
        {"tools": [{"type": "function", "function": LOOK | {"strict": None}, "extra": None}]},
        {"body": {"messages": [USER], "tools": [TOOL]}},
        {"request": {"messages": [USER], "tools": [TOOL]}},
        {"request": {"body": {"messages": [USER], "tools": [TOOL]}}},
    ],
)
def test_tools_have_one_form(row: dict):
    assert tools_of(row) == [TOOL]


@pytest.mark.parametrize("none", [None, [], "", "[]"])
def test_a_row_may_have_no_tools(none: object):
    assert tools_of({"messages": [USER], "tools": none}) == []


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        (3, "bad_tools"), ("look", "bad_tools"), ("3", "bad_tools"), ([3], "bad_tools"), (["look"], "bad_tools"),
        ([{"function": 3}], "bad_tools"), ([{"description": "nothing"}], "bad_tools"), (TOOL, "bad_tools"),
        ([LOOK | {"parameters": "{"}], "bad_tools"), ([LOOK | {"parameters": nested(900)}], "nested_too_deeply"),
        ([LOOK | {"name": "\ud800"}], "lone_surrogate"), ('[{"name": "f", "x": NaN}]', "number_not_finite"),
    ],
)  # fmt: skip
def test_bad_tools_are_rejected(tools: object, reason: str):
    assert tools_of({"messages": [USER], "tools": tools}) == Rejection(reason)


def test_keys_that_parquet_fills_with_null_are_no_parameters(tmp_path: Path):
    tools = [
        TOOL,
        {
            "type": "function",
            "function": {"name": "read", "parameters": {"properties": {"p": {"type": "x"}}}},
        },
    ]
    pq.write_table(pa.Table.from_pylist([{"tools": tools}]), tmp_path / "a.parquet")
    (row,) = read(tmp_path / "a.parquet")
    assert row["tools"][1]["function"]["parameters"]["properties"] == {"p": {"type": "x"}, "q": None}
    assert tools_of(row) == tools


# --- naming and splitting


def test_the_key_is_of_the_prompt_alone():
    key = prompt_key([USER])
    assert key == "897be8e1f0370e7f41788b5b5337627e27486af82d28479ccfbe509c847683b9"  # of [["user","hi"]]
    assert prompt_key([USER, BOT]) == key
    assert prompt_key([{"role": "system", "content": "s"}, USER]) != key
    assert prompt_key([USER, BOT, USER]) == prompt_key([USER, USER]) != key
    assert prompt_key([USER], [TOOL]) == prompt_key([USER, BOT], [TOOL]) != key == prompt_key([USER], [])


def test_splits_take_opposite_ends():
    low, middle, high = "0" * 64, "8" + "0" * 63, "f" * 64
    assert [split_of(key, 0.1, 0.1) for key in (low, middle, high)] == ["benchmark", "train", "heldout"]
    assert [split_of(key, 0.0, 0.0) for key in (low, middle, high)] == ["train"] * 3
    assert split_of("19" + "0" * 62, 0.0, 0.1) == "benchmark"  # 0x19 / 256 = 0.098
    assert split_of("1a" + "0" * 62, 0.0, 0.1) == "train"  # 0.102


def test_shares_are_met_on_many_prompts():
    keys = [prompt_key([{"role": "user", "content": str(number)}]) for number in range(4000)]
    splits = [split_of(key, 0.05, 0.2) for key in keys]
    assert abs(splits.count("heldout") / 4000 - 0.05) < 0.015
    assert abs(splits.count("benchmark") / 4000 - 0.2) < 0.025
