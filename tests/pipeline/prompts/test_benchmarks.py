"""Wording of every benchmark, local files, selection, and errors that name the key."""

import json
from pathlib import Path

import pytest
import yaml
from tiny_errors import refused

from pipeline.config import ConfigError
from pipeline.prompts.benchmarks import FOLDER, load_benchmark, load_prompts
from pipeline.prompts.rows import prompt_key, split_of

REASON = "\nPlease reason step by step, and put your final answer within \\boxed{}."
EXPERT = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will "
    "generate a correct Python program that matches the specification and passes all tests. You will NOT "
    "return anything except for the program\n\n### Question:\nAdd {a} and b.\n\n"
)
# benchmark -> (a row as the Hub has it, the user turns that it becomes). Braces in a row stay as they are.
WORDED = {
    "gsm8k": ({"question": "2 + {x}?", "answer": "4"}, ["2 + {x}?" + REASON]),
    "math500": ({"problem": "Find $\\frac{1}{2}$.", "level": 1}, ["Find $\\frac{1}{2}$." + REASON]),
    "aime25": ({"problem": "Find n.", "answer": 7}, ["Find n." + REASON]),
    "humaneval": (
        {"task_id": "HumanEval/0", "prompt": "def f():\n    pass\n", "test": "..."},
        [
            "Write a solution to the following problem and make sure that it passes the tests:\n"
            "```python\ndef f():\n    pass\n\n```"
        ],
    ),
    "mbpp": ({"prompt": "Write a function.", "code": "..."}, ["Write a function."]),
    "livecodebench": (
        {"question_content": "Add {a} and b.", "starter_code": ""},
        [
            EXPERT
            + "### Format: Write your code in the following format:\n```python\n# YOUR CODE HERE\n```\n\n"
            "### Answer: (use the provided format with backticks)"
        ],
    ),
    "mt_bench": (
        {"prompt": ["Write a poem.", "Now rhyme it."], "category": "writing"},
        ["Write a poem.", "Now rhyme it."],
    ),
    "alpaca": ({"instruction": "Name three fruits.", "input": "", "output": "..."}, ["Name three fruits."]),
    "arena_hard": ({"uid": "1", "category": "hard_prompt", "prompt": "Prove it."}, ["Prove it."]),
}


def write(path: Path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def turns(prompts):
    return [[message["content"] for message in prompt.messages] for prompt in prompts]


@pytest.mark.parametrize("name", WORDED)
def test_wording(name, tmp_path):
    row, expected = WORDED[name]
    prompts = load_prompts(load_benchmark(name), write(tmp_path / "rows.jsonl", row))
    assert turns(prompts) == [expected]
    assert all(message["role"] == "user" for message in prompts[0].messages)


def test_wording_with_starter_code_and_with_input(tmp_path):
    rows = write(
        tmp_path / "a.jsonl", {"question_content": "Add {a} and b.", "starter_code": "class S:\n  ..."}
    )
    assert turns(load_prompts(load_benchmark("livecodebench"), rows)) == [
        [
            EXPERT + "### Format: Use the following code structure:\n```python\nclass S:\n  ...\n```\n\n"
            "### Answer: (use the provided format with backticks)"
        ]
    ]
    rows = write(tmp_path / "b.jsonl", {"instruction": "Sort.", "input": "3, 1", "output": ""})
    assert turns(load_prompts(load_benchmark("alpaca"), rows)) == [["Sort.\n\nInput:\n3, 1"]]


def test_every_file_of_the_folder_is_a_benchmark():
    names = {path.stem for path in FOLDER.glob("*.yaml")}
    quickstart = {"quickstart_math", "quickstart_code", "quickstart_chat", "quickstart_heldout"}
    assert names == set(WORDED) | quickstart
    for name in names:
        assert load_benchmark(name).name == name


def test_finished_prompts_of_a_local_file_are_taken_as_they_are(tmp_path):
    file = write(
        tmp_path / "rows.jsonl",
        {"turns": ["One.", "Two."], "question": "not this"},
        {"messages": [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "A?"},
            {"role": "assistant", "content": "not this"}, {"role": "user", "content": "B?"},
        ]},
        {"prompt": "Three."},
    )  # fmt: skip
    prompts = load_prompts(load_benchmark("gsm8k"), file)
    assert turns(prompts) == [["One.", "Two."], ["Be brief.", "A?", "B?"], ["Three."]]
    assert [m["role"] for m in prompts[1].messages] == ["system", "user", "user"]
    assert [(p.benchmark, p.index) for p in prompts] == [("gsm8k", 0), ("gsm8k", 1), ("gsm8k", 2)]


def test_tools_of_finished_prompts_are_kept(tmp_path):
    tool = {"type": "function", "function": {"name": "look"}}
    rows = [{"turns": ["a"], "tools": json.dumps([tool])}, {"prompt": "b", "tools": [tool]}, {"prompt": "c"}]
    prompts = load_prompts(load_benchmark("gsm8k"), write(tmp_path / "rows.jsonl", *rows))
    assert [p.tools for p in prompts] == [[tool], [tool], []]
    assert prompts[0].key == prompt_key([{"role": "user", "content": "a"}], [tool])
    with refused(ConfigError, "bad.jsonl", "row 0", "bad_tools"):
        load_prompts(load_benchmark("gsm8k"), write(tmp_path / "bad.jsonl", {"prompt": "c", "tools": 3}))


def test_quickstart_benchmarks_hold_what_the_hash_keeps_from_training():
    """Every prompt is in its split by the same hash that stage cache splits with."""
    heldout = load_prompts(load_benchmark("quickstart_heldout"))
    parts = {c: load_prompts(load_benchmark(f"quickstart_{c}")) for c in ("math", "code", "chat")}
    shares = {"heldout": 0.05, "benchmark": 0.1}
    assert {split_of(p.key, **shares) for p in heldout} == {"heldout"}
    for prompts in parts.values():
        assert len(prompts) >= 10
        assert {split_of(p.key, **shares) for p in prompts} == {"benchmark"}
        assert all(p.key == prompt_key(p.messages) for p in prompts)
    keys = [p.key for prompts in (heldout, *parts.values()) for p in prompts]
    assert len(keys) == len(set(keys))


def test_quickstart_shares_are_those_of_its_data_config():
    conf = Path(__file__).parents[3] / "conf" / "data" / "quickstart.yaml"
    data = yaml.safe_load(conf.read_text())
    for name in ("quickstart_math", "quickstart_code", "quickstart_chat", "quickstart_heldout"):
        share = load_benchmark(name).share
        assert (share.heldout, share.benchmark) == (data["heldout"], data["benchmark"])


def test_a_limit_keeps_a_stable_choice(tmp_path):
    """Smaller limits are part of larger ones; prompts stay in the file's order; keys do not depend on it."""
    rows = [{"turns": [f"Question {i}"]} for i in range(40)]
    file, turned = write(tmp_path / "a.jsonl", *rows), write(tmp_path / "b.jsonl", *rows[::-1])
    benchmark = load_benchmark("mbpp")
    five, ten = (load_prompts(benchmark, file, limit) for limit in (5, 10))
    assert len(five) == 5
    assert [p.index for p in five] == [0, 1, 2, 3, 4]
    assert {p.key for p in five} < {p.key for p in ten}
    numbers = [int(p.messages[0]["content"].split()[1]) for p in ten]
    assert numbers == sorted(numbers)
    assert numbers != list(range(10))
    assert {p.key for p in load_prompts(benchmark, turned, 5)} == {p.key for p in five}


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"text": "?"}, ["['question']", "['text']"]),
        ({"turns": []}, ["empty"]),
        ({"turns": ["a", None]}, ["null_content"]),
        ({"messages": [{"role": "system", "content": "x"}]}, ["system_only"]),
    ],
)
def test_unusable_rows_are_named(tmp_path, row, named):
    with refused(ConfigError, "benchmark gsm8k", "rows.jsonl", "row 0", *named):
        load_prompts(load_benchmark("gsm8k"), write(tmp_path / "rows.jsonl", row))


def test_missing_things_are_named(tmp_path):
    with pytest.raises(ConfigError, match="evaluate.files.gsm8k=nowhere.jsonl"):
        load_prompts(load_benchmark("gsm8k"), "nowhere.jsonl")
    with refused(ConfigError, "evaluate.benchmarks", "aime25", "alpaca", "'gsm9k'"):
        load_benchmark("gsm9k")
    with refused(ConfigError, "benchmark gsm8k", tmp_path / "empty.jsonl"):
        load_prompts(load_benchmark("gsm8k"), write(tmp_path / "empty.jsonl"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"colour": "red"}, ["keys", "['colour']"]),
        ({"fields": ["other"]}, ["fields", "['question']", "['other']"]),
        ({"wording": [{"turn": ["x"]}]}, ["wording", "['turn']"]),
        ({"wording": [{}]}, ["wording", "turns_field"]),
        ({"wording": [{"turns": ["{question}"], "when": "question"}]}, ["wording", "when: question"]),
        ({"path": None}, ["'path'"]),
        ({"share": {"split": "heldout", "heldout": 1.5, "benchmark": 0.0}}, ["share.heldout", 1.5]),
        ({"share": {"split": "test", "heldout": 0.5, "benchmark": 0.0}}, ["share.split", "test"]),
    ],
)
def test_bad_benchmark_files_are_named(tmp_path, changes, named):
    values = {
        "name": "b",
        "path": "x/y",
        "fields": ["question"],
        "wording": [{"turns": ["{question}"]}],
    } | changes
    (tmp_path / "b.yaml").write_text(yaml.safe_dump({k: v for k, v in values.items() if v is not None}))
    with refused(ConfigError, tmp_path / "b.yaml", *named):
        load_benchmark("b", tmp_path)


def test_named_files_of_a_hub_repository(tmp_path, monkeypatch):
    """Repositories without a loader: their JSONL files at the revision, and only the columns in use."""
    import datasets

    seen = {}

    def load_dataset(kind, data_files, split):
        seen.update(kind=kind, data_files=data_files, split=split)
        return datasets.Dataset.from_list([{"uid": "1", "prompt": "Prove it.", "big": "x"}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert turns(load_prompts(load_benchmark("arena_hard"))) == [["Prove it."]]
    assert seen["data_files"] == [
        "hf://datasets/lmarena-ai/arena-hard-auto@main/data/arena-hard-v2.0/question.jsonl"
    ]
    assert (seen["kind"], seen["split"]) == ("json", "train")


def test_a_hub_data_set_is_asked_for_by_subset_split_and_revision(monkeypatch):
    import datasets

    seen = []

    def load_dataset(path, subset, split, revision):
        seen.append((path, subset, split, revision))
        return datasets.Dataset.from_list([{"question": "1 + 1?", "answer": "2"}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert turns(load_prompts(load_benchmark("gsm8k"))) == [["1 + 1?" + REASON]]
    assert seen == [("openai/gsm8k", "main", "test", "main")]
