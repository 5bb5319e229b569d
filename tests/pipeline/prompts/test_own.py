"""One's own prompts as benchmarks: read as training reads them, whatever the file and the schema."""

import csv
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import Config, ConfigError, DataConfig, EvaluateConfig, SourceConfig
from pipeline.prompts.own import OwnPrompts, benchmarks_of, prompts_of
from pipeline.prompts.rows import prompt_key, split_of

USER, BOT = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}
REQUEST = {"messages": [USER], "model": "x"}
REPLY = {"choices": [{"message": BOT}]}
SCHEMAS = {
    "messages": {"messages": [USER, BOT]},
    "conversations": {"conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]},
    "batch": {"custom_id": "1", "method": "POST", "body": REQUEST, "response": {"body": REPLY}},
    "log": {"request": REQUEST, "response": REPLY},
    "chosen": {"prompt": "Why?", "chosen": "Because.", "rejected": "No."},
    "turns": {"turns": ["Why?"]},
    "prompt": {"prompt": "Why?", "completion": "Because."},
    "instruction": {"instruction": "Why?", "input": "", "output": "Because."},
    "question": {"question": "Why?", "answer": "Because."},
}


def asked_of(name, path, **more):
    """The prompts of the only benchmark ``name``, which ``path`` gives."""
    config = Config(evaluate=EvaluateConfig(benchmarks=[name], files={name: str(path)}, **more))
    (benchmark,) = benchmarks_of(config)
    return prompts_of(config, benchmark)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_schema_that_training_reads(tmp_path, schema):
    (only,) = asked_of("mine", write(tmp_path / "rows.jsonl", [SCHEMAS[schema]]))
    assert (only.benchmark, only.index, only.messages) == ("mine", 0, [USER])
    assert only.key == prompt_key([USER])
    # A benchmark whose rows have other fields takes them too: this one asks for ``problem``.
    (only,) = asked_of("aime25", write(tmp_path / "rows.jsonl", [SCHEMAS[schema]]))
    assert (only.benchmark, only.messages) == ("aime25", [USER])


def test_every_kind_of_file(tmp_path):
    rows = [{"question": "Why?"}, {"question": "How?"}]
    write(tmp_path / "a.jsonl", rows)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    (tmp_path / "a.json").write_text(json.dumps(rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["question"])
        writer.writeheader()
        writer.writerows(rows)
    for place in ("a.jsonl", "a.jsonl.gz", "a.json", "a.parquet", "a.csv", "", "*.jsonl"):
        found = asked_of("mine", tmp_path / place)
        assert [p.messages[0]["content"] for p in found] == ["Why?", "How?"], place
    assert len(asked_of("mine", tmp_path / "a.csv", prompts=1)) == 1


def test_what_cannot_be_asked_is_counted(tmp_path, capsys):
    tool = {"messages": [USER, BOT, {"role": "tool", "content": "42"}, BOT]}
    rows = [{"prompt": "Why?"}, {"prompt": "Why?"}, {"text": "?"}, tool]
    assert len(asked_of("mine", write(tmp_path / "rows.jsonl", rows))) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "benchmark mine: 1 of 4 rows" in shown
    for count in ("duplicate_prompt 1", "no_known_fields 1", "tool_results 1"):
        assert count in shown


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="^evaluate.files.mine: .*nowhere.jsonl"):
        asked_of("mine", tmp_path / "nowhere.jsonl")
    with pytest.raises(ConfigError, match="^evaluate.files.mine: .*no_known_fields 1"):
        asked_of("mine", write(tmp_path / "rows.jsonl", [{"text": "?"}]))


def own(tmp_path, **shares):
    source = SourceConfig(str(write(tmp_path / "data.jsonl", [{"prompt": f"Why {i}?"} for i in range(50)])))
    data = DataConfig("why", [source], **shares)
    config = Config(data=data, evaluate=EvaluateConfig(benchmarks=["own"]))
    return config, benchmarks_of(config)


def test_own_is_what_the_data_hold_back(tmp_path):
    config, (benchmark,) = own(tmp_path, heldout=0.2, benchmark=0.2)
    found = prompts_of(config, benchmark)
    texts = [p.messages[0]["content"] for p in found]
    keys = {f"Why {i}?": prompt_key([{"role": "user", "content": f"Why {i}?"}]) for i in range(50)}
    assert texts == [text for text, key in keys.items() if split_of(key, 0.2, 0.2) == "benchmark"]
    assert len(texts) == 9 and {p.benchmark for p in found} == {"own"}


def test_own_without_a_share_names_the_key(tmp_path):
    with pytest.raises(ConfigError, match="^data.benchmark=0.0: .*data=why"):
        own(tmp_path)


def test_contents_follow_the_file_not_its_place(tmp_path):
    def contents(path):
        return OwnPrompts("mine", "k", DataConfig("mine", [SourceConfig(str(path))], heldout=0.0)).contents

    path = write(tmp_path / "a.jsonl", [{"prompt": "Why?"}])
    before = contents(path)
    assert contents(path.rename(tmp_path / "b.jsonl")) == before
    assert contents(write(tmp_path / "c.jsonl", [{"prompt": "How?"}])) != before
    with pytest.raises(ConfigError, match="^k: .*nowhere.jsonl"):
        contents(tmp_path / "nowhere.jsonl")
