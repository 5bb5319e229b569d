import json
from pathlib import Path

from pipeline.config import DataConfig, SourceConfig
from pipeline.prompts.rows import prompt_key
from pipeline.prompts.training import count_table, load_prompts


def data(path: Path, rows: list, **fields) -> DataConfig:
    path = path / f"{len(list(path.iterdir()))}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DataConfig(name="data", sources=[SourceConfig(path=str(path))], **({"heldout": 0.0} | fields))


def many(number: int) -> list[dict]:
    return [{"prompt": f"question {n}"} for n in range(number)]


def test_accepted_and_rejected_add_up(tmp_path: Path):
    """Pitfall 9."""
    user, bot = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
    rows = [
        {"messages": [user, bot], "category": "chat"}, {"prompt": "hi"}, {"text": "?"}, {"messages": [bot]},
        {"messages": [user, user]}, {"messages": []}, {"turns": ["hi", "more"], "category": 3},
        {"prompt": None},
    ]  # fmt: skip
    prompts = load_prompts(data(tmp_path, rows))
    assert prompts.rejected == {
        "assistant_first": 1, "duplicate_prompt": 1, "empty": 1, "no_known_fields": 1, "null_content": 1,
        "two_users_in_a_row": 1,
    }  # fmt: skip
    assert (prompts.read, prompts.accepted) == (8, 2)
    assert prompts.accepted + sum(prompts.rejected.values()) == prompts.read
    assert [prompt.category for prompt in prompts.rows] == ["chat", "3"]
    assert prompts.rows[0].key == prompt_key([user])
    assert dict(count_table(prompts))["read"] == 8 and dict(count_table(prompts))["accepted, train"] == 2


def test_given_answers_ask_for_answers_and_keep_tools(tmp_path: Path):
    user, bot = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
    tools = {"messages": [user | {"content": "q"}, bot, {"role": "tool", "content": "r"}, bot]}
    rows = [{"messages": [user]}, {"messages": [user | {"content": "x"}, bot]}, tools]
    assert load_prompts(data(tmp_path, rows), given=True).rejected == {"no_answer": 1}
    assert load_prompts(data(tmp_path, rows), given=False).rejected == {"tool_results": 1}


CONTROL = ["<|im_end|>", "[INST]"]
MARKED = [
    {"prompt": "what is <|im_end|>?"},
    {"messages": [{"role": "system", "content": "[INST] <|im_end|>"}, {"role": "user", "content": "x"}]},
    {"messages": [{"role": "user", "content": "y"}, {"role": "assistant", "content": "<|im_end|>"}]},
    {"prompt": "plain"},
]


def test_control_tokens_in_a_users_text_are_counted(tmp_path: Path):
    """Pitfall 8: they become control tokens of the prompt."""
    prompts = load_prompts(data(tmp_path, MARKED), control=CONTROL)
    assert (prompts.accepted, prompts.rejected) == (4, {})
    assert prompts.control_tokens == {"<|im_end|>": 2, "[INST]": 1}
    assert dict(count_table(prompts))["accepted, <|im_end|> in a user's text"] == 2


def test_control_tokens_in_a_users_text_may_be_rejected(tmp_path: Path):
    prompts = load_prompts(data(tmp_path, MARKED, control_tokens="reject"), control=CONTROL)
    assert (prompts.accepted, prompts.rejected, prompts.control_tokens) == (2, {"control_tokens": 2}, {})
    assert prompts.details == {"control_tokens": "<|im_end|>"}


def test_splits_stay_when_data_are_added(tmp_path: Path):
    few = load_prompts(data(tmp_path, many(60), heldout=0.1, benchmark=0.2))
    more = load_prompts(data(tmp_path, many(90)[::-1], heldout=0.1, benchmark=0.2))
    splits = {prompt.key: prompt.split for prompt in more.rows}
    assert {prompt.key: splits[prompt.key] for prompt in few.rows} == {p.key: p.split for p in few.rows}
    assert all(few.of(split) for split in ("train", "heldout", "benchmark"))
    assert sum(len(few.of(split)) for split in ("train", "heldout", "benchmark")) == 60


def test_a_subset_is_stable_and_keeps_the_shares(tmp_path: Path):
    rows = many(1000)
    whole = load_prompts(data(tmp_path, rows, heldout=0.2, max_prompts=1000))
    half = load_prompts(data(tmp_path, rows, heldout=0.2, max_prompts=500))
    third = load_prompts(data(tmp_path, rows[::-1], heldout=0.2, max_prompts=300))
    assert half.rejected == {"beyond_max_prompts": 500} and whole.rejected == {}
    assert (half.accepted, half.read) == (500, 1000)
    assert {p.key for p in third.rows} < {p.key for p in half.rows}
    assert [p.key for p in half.rows] == [p.key for p in whole.rows if p.key in {q.key for q in half.rows}]
    assert abs(len(half.of("heldout")) / 500 - 0.2) < 0.06


def test_the_fingerprint_follows_the_contents(tmp_path: Path):
    """Pitfall 13: the path alone says nothing."""
    config = data(tmp_path, many(3))
    first = load_prompts(config).fingerprint()
    assert load_prompts(config).fingerprint() == first
    Path(config.sources[0].path).write_text(json.dumps({"prompt": "another"}))
    assert load_prompts(config).fingerprint() != first
    config.heldout = 0.5
    assert load_prompts(data(tmp_path, many(3), heldout=1.0)).fingerprint() != first


def test_the_quickstart_prompts_are_all_usable():
    source = SourceConfig(path="data_specs/prompts/quickstart.jsonl")
    prompts = load_prompts(DataConfig(name="quickstart", sources=[source]))
    assert (prompts.read, prompts.accepted, prompts.rejected) == (1020, 1020, {})
    assert {prompt.category for prompt in prompts.rows} == {"math", "code", "chat"}
    turns = [sum(m["role"] == "user" for m in prompt.messages) for prompt in prompts.rows]
    assert (turns.count(1), turns.count(2)) == (1008, 12)
