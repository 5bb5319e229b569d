import hashlib
import json
import random
import signal
from pathlib import Path

import pytest
import tiny
from tiny_answers import TEXTS, Refusing, Scripted, config, files, kill_after, many, run
from tiny_errors import refused
from tiny_templates import SWITCHED, folder_with
from transformers import AutoTokenizer

from data_specs.answers import read_answers
from pipeline.config import (
    ConfigError,
)
from pipeline.prompts.chat import render_prompt
from pipeline.store import artifacts
from pipeline.store.artifacts import Store
from stages.cache import answers, answers_plan
from stages.cache.answers import run_answers
from stages.cache.answers_job import prepare


@pytest.mark.parametrize("source", ["hf", "given"])
def test_a_token_without_an_embedding_rejects_its_row_only(tmp_path: Path, store: Store, source: str) -> None:
    """The tokenizer knows a token for which the model has no row: the whole run ended in an index error."""
    folder = tiny.save_target(tmp_path / "target", vocab_size=264)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"<extra{i}>" for i in range(10)])
    tokenizer.save_pretrained(folder)
    answer = [{"role": "assistant", "content": "yes"}] if source == "given" else []
    rows = [
        {"messages": [{"role": "user", "content": text}, *answer]} for text in ("say <extra9> now", "hello")
    ]
    cfg = config(tmp_path, folder, rows, answers={"source": source}, data={"heldout": 0.0})
    made = run_answers(cfg, store)
    assert made is not None and made.manifest.counts["rows"] == 1
    assert made.manifest.counts["rejected"] == {"token_without_embedding": 1}


def test_answers_are_made_once(
    tmp_path: Path, target_folder: Path, store: Store, capsys: pytest.CaptureFixture
):
    cfg = config(tmp_path, target_folder)
    artifact = run_answers(cfg, store)
    assert artifact is not None and artifact.reference == "tiny_few:v0"
    artifact.verify()
    assert sorted(artifact.manifest.files) == ["00000.parquet", "00001.parquet", "00002.parquet"]
    assert sorted(path.name for path in artifact.path.iterdir()) == [
        *sorted(artifact.manifest.files),
        "manifest.json",
    ]
    counts = artifact.manifest.counts
    assert (counts["read"], counts["accepted"], counts["rejected"], counts["rows"]) == (10, 10, {}, 10)
    assert sum(counts["rows_by_split"].values()) == 10
    assert sum(counts["finish_reasons"].values()) == 10
    assert counts["sampling"] == {"engine": "hf", "seed": 0, "max_new_tokens": 12, "temperature": 0.0}
    table = read_answers(artifact.path)
    assert counts["answer_tokens"] == sum(map(len, table["answer_ids"].to_pylist()))
    said = [json.loads(text) for text in table["messages"].to_pylist()]
    assert [messages[0]["content"] for messages in said] == TEXTS
    assert table["prompt_ids"].to_pylist() == [render_prompt(tiny.tokenizer(), m[:1], None) for m in said]
    capsys.readouterr()
    assert run_answers(cfg, store) == artifact
    assert "Reusing the answers tiny_few:v0" in capsys.readouterr().out


def test_finish_reasons_are_reported(
    tmp_path: Path, target_folder: Path, store: Store, capsys: pytest.CaptureFixture
):
    """Pitfall 12."""
    artifact = run_answers(config(tmp_path, target_folder, answers={"max_new_tokens": 2}), store)
    reasons = read_answers(artifact.path)["finish_reason"].to_pylist()
    assert artifact.manifest.counts["finish_reasons"]["length"] == reasons.count("length") >= 2
    out = capsys.readouterr().out
    assert f"length {reasons.count('length')}" in out
    assert "warning:" in out and "raise answers.max_new_tokens" in out


def test_benchmark_prompts_are_never_answered(tmp_path: Path, target_folder: Path, store: Store):
    cfg = config(tmp_path, target_folder, data={"benchmark": 0.4, "heldout": 0.2})
    artifact = run_answers(cfg, store)
    left_out = artifact.manifest.counts["benchmark_prompts"]
    assert 0 < left_out < 10
    assert set(read_answers(artifact.path)["split"].to_pylist()) == {"train", "heldout"}
    assert artifact.manifest.counts["rows"] == 10 - left_out


def test_what_the_template_was_told_is_recorded_and_in_every_prompt(
    tmp_path: Path, target_folder: Path, store: Store
):
    """Pitfall 4."""
    folder = folder_with(SWITCHED, tmp_path / "target", target_folder)
    told = {"thinking": False, "template_kwargs": {"style": "terse "}}
    artifact = run_answers(config(tmp_path, folder, [{"turns": ["a", "b"]}], target=told), store)
    counts, target = artifact.manifest.counts, artifact.manifest.config["target"]
    assert {name: counts[name] for name in told} == told
    digest = hashlib.sha256(json.dumps(SWITCHED).encode()).hexdigest()
    assert {name: target[name] for name in (*told, "chat_template")} == told | {"chat_template": digest}
    table = read_answers(artifact.path)
    assert table["thinking"].to_pylist() == [False, False]
    prompts = [tiny.tokenizer().decode(ids) for ids in table["prompt_ids"].to_pylist()]
    start, end = "terse <|im_start|>user\na<|im_end|>\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert prompts[0] == start + end
    assert prompts[1].startswith(start) and prompts[1].endswith("<|im_start|>user\nb<|im_end|>\n" + end)


@pytest.mark.parametrize(
    ("choice", "rejected", "control"),
    [("keep", {}, {"<|im_end|>": 1, "<|unused|>": 2}), ("reject", {"control_tokens": 2}, {})],
)
def test_control_tokens_in_a_users_text_are_in_manifest_and_report(
    tmp_path: Path,
    target_folder: Path,
    store: Store,
    capsys: pytest.CaptureFixture,
    choice,
    rejected,
    control,
):
    rows = [{"prompt": "a<|unused|>"}, {"prompt": "<|im_end|><|unused|>"}, {"prompt": "b"}]
    cfg = config(tmp_path, target_folder, rows, data={"control_tokens": choice})
    counts = run_answers(cfg, store).manifest.counts
    assert (counts["rejected"], counts["control_tokens"]) == (rejected, control)
    said = capsys.readouterr().out
    assert all(f"{n} rows have {token} in a user's text" in said for token, n in control.items())
    assert ("data.control_tokens=reject" in said) == bool(control)


def test_turns_are_answered_one_by_one(tmp_path: Path, target_folder: Path):
    rows = [
        {"turns": ["ab", "cd"]}, {"prompt": "ef"}, {"turns": ["gh", "bad", "ij"]}, {"prompt": "bad"},
        {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "kl"},
                      {"role": "assistant", "content": "other"}, {"role": "user", "content": "mn"}]},
        {"prompt": "x" * 300},
    ]  # fmt: skip
    job = prepare(config(tmp_path, target_folder, rows, answers={"chunk_prompts": 9}))
    engine = Scripted()
    made, counts = answers.answer_unit(job, engine, "00000", lambda prompts, tokens: None)
    assert engine.asked == [["ab", "ef", "gh", "bad", "kl"], ["cd", "bad", "mn"]]
    assert counts == {"rejected/empty_answer": 1, "rejected/prompt_too_long": 1, "later_turn/empty_answer": 1}
    said = [[m["content"] for m in json.loads(row.messages)] for row in made]
    assert said == [["ab", "ba"], ["ab", "ba", "cd", "dc"], ["ef", "fe"], ["gh", "hg"],
                    ["S", "kl", "lk"], ["S", "kl", "lk", "mn", "nm"]]  # fmt: skip
    assert [row.turn for row in made] == [0, 1, 0, 0, 0, 1]
    history = [
        {"role": role, "content": text}
        for role, text in zip(("user", "assistant", "user"), said[1], strict=False)
    ]
    assert made[1].prompt_ids == render_prompt(tiny.tokenizer(), history, None)
    assert made[1].answer_ids == [*tiny.tokenizer()("dc")["input_ids"], 258]


def test_late_rejections_keep_the_sum(tmp_path: Path, target_folder: Path, store: Store):
    """Pitfall 9: prompts too long for the target are found only after they are rendered."""
    small = tiny.save_target(tmp_path / "small", max_position_embeddings=60)
    rows = [{"prompt": "short"}, {"prompt": "l" * 80}, {"text": "?"}, {"prompt": "s" * 30}]
    counts = run_answers(config(tmp_path, small, rows), store).manifest.counts
    assert counts["rejected"] == {"no_known_fields": 1, "prompt_too_long": 1}
    assert (counts["accepted"], counts["read"]) == (2, 4)
    table = read_answers(store.resolve("answers", "tiny_few").path)
    total = [
        len(p) + len(a)
        for p, a in zip(table["prompt_ids"].to_pylist(), table["answer_ids"].to_pylist(), strict=True)
    ]
    assert max(total) <= 60


def test_nothing_to_answer_is_an_error(tmp_path: Path, target_folder: Path, store: Store):
    with refused(ConfigError, "data", 1, {"empty": 1}):
        run_answers(config(tmp_path, target_folder, [{"messages": []}]), store)
    small = tiny.save_target(tmp_path / "small", max_position_embeddings=40)
    with refused(ConfigError, "data", 1, "prompt_too_long"):
        run_answers(config(tmp_path, small, [{"prompt": "l" * 80}]), store)


def test_given_answers(tmp_path: Path, target_folder: Path, store: Store):
    user, bot = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
    rows = [
        {"messages": [user, bot, user, bot | {"content": "again"}]},
        {"instruction": "Add 1 and 2.", "output": "3"},
        {"prompt": "unanswered"},
        {"messages": [user | {"content": "q"}, bot | {"reasoning_content": "hm"}]},
    ]
    cfg = config(tmp_path, target_folder, rows, answers={"source": "given"})
    lines = dict(answers_plan.plan_lines(prepare(cfg)))
    assert (lines["turns"], lines["answer tokens"]) == (
        "about 3",
        "about 14",
    )  # hello, again, 3 and three ends
    artifact = run_answers(cfg, store)
    table = read_answers(artifact.path)
    decode = tiny.tokenizer().decode
    assert [decode(ids) for ids in table["answer_ids"].to_pylist()] == [
        "hello<|im_end|>", "again<|im_end|>", "3<|im_end|>",
    ]  # fmt: skip
    assert table["turn"].to_pylist() == [0, 1, 0]
    assert set(table["finish_reason"].to_pylist()) == {"given"}
    counts = artifact.manifest.counts
    assert counts["rejected"] == {"no_answer": 1, "reasoning_not_rendered": 1}
    assert (counts["read"], counts["accepted"], counts["rows"]) == (4, 2, 3)


def test_a_rerun_asks_only_for_what_is_missing(
    tmp_path: Path,
    target_folder: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
):
    engine, cfg = Scripted(), config(tmp_path, target_folder)
    monkeypatch.setattr(answers, "_engine", lambda job: engine)

    class Killed(BaseException):
        pass

    def killed(path, rows, counts):
        if path.name == "00001.parquet":
            raise Killed
        write_answers(path, rows, counts)

    write_answers = answers.write_answers
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(answers, "write_answers", killed)
        run_answers(cfg, store)
    engine.asked.clear()
    capsys.readouterr()
    artifact = run_answers(cfg, store)
    assert engine.asked == [TEXTS[4:8], TEXTS[8:]]
    assert "4 of 10 prompts" in capsys.readouterr().out
    assert [
        json.loads(text)[0]["content"] for text in read_answers(artifact.path)["messages"].to_pylist()
    ] == TEXTS


def test_a_death_in_the_commit_is_mended(
    tmp_path: Path, target_folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    """The manifest is written, the folder not yet renamed; another writer has left half a file."""
    engine, cfg = Scripted(), config(tmp_path, target_folder)
    monkeypatch.setattr(answers, "_engine", lambda job: engine)

    class Killed(BaseException):
        pass

    def killed(folder, manifest):
        write_manifest(folder, manifest)
        (folder / ".00000.parquet.1.tmp").write_bytes(b"half")
        raise Killed

    write_manifest = artifacts.write_manifest
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(artifacts, "write_manifest", killed)
        run_answers(cfg, store)
    assert store.list("answers") == []
    engine.asked.clear()
    artifact = run_answers(cfg, store)
    assert engine.asked == []
    names = sorted(path.name for path in artifact.path.iterdir())
    assert names == ["00000.parquet", "00001.parquet", "00002.parquet", "manifest.json"]
    artifact.verify()


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_kill_9_anywhere(tmp_path: Path, target_folder: Path, store: Store, processes, kills: int):
    """Must hold 5: after kills at random moments the files equal an unbroken run's, sampling included."""
    cfg = many(tmp_path, target_folder, 1.0)
    expected = run_answers(cfg, Store(tmp_path / "unbroken"))
    fingerprint, dice = expected.manifest.fingerprint, random.Random(kills)
    partial = store.root / "answers" / "tiny_few" / f".partial-{fingerprint[:16]}"
    for kill in range(kills):
        child = processes.Process(target=run, args=(cfg, store.root))
        child.start()
        kill_after(child, partial, kill * 6 // kills, dice.uniform(0, 0.05))
        assert child.exitcode == -signal.SIGKILL
    artifact = run_answers(cfg, store)
    assert files(artifact.path) == files(expected.path) and len(files(artifact.path)) == 8
    assert artifact.manifest.counts == expected.manifest.counts
    assert artifact.manifest.files == expected.manifest.files
    assert [path.name for path in artifact.path.parent.iterdir()] == ["v0"]


def test_two_ranks_make_what_one_makes(tmp_path: Path, target_folder: Path, store: Store, processes):
    cfg = many(tmp_path, target_folder, 1.0)
    ranks = [processes.Process(target=run, args=(cfg, store.root, rank, 2)) for rank in range(2)]
    for child in ranks:
        child.start()
    for child in ranks:
        child.join(60)
    assert [child.exitcode for child in ranks] == [0, 0]
    assert [artifact.reference for artifact in store.list("answers")] == ["tiny_few:v0"]
    alone = run_answers(cfg, Store(tmp_path / "alone"))
    assert files(store.resolve("answers", "tiny_few").path) == files(alone.path)


def test_a_refused_prompt_is_counted(
    tmp_path: Path, target_folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(answers, "_engine", lambda job: Refusing(["who", "why"]))
    counts = run_answers(config(tmp_path, target_folder), store).manifest.counts
    assert counts["rejected"] == {"refused_by_server": 2} and counts["rows"] == 8
    assert "too spicy" in str(counts["notes"])


def test_all_refused_is_an_error_with_the_servers_words_and_is_asked_again(
    tmp_path: Path, target_folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    cfg = config(tmp_path, target_folder)
    monkeypatch.setattr(answers, "_engine", lambda job: Refusing(TEXTS))
    with refused(ConfigError, "data", 10, 400, "too spicy"):
        run_answers(cfg, store)
    monkeypatch.setattr(answers, "_engine", lambda job: Scripted())
    assert run_answers(cfg, store).manifest.counts["rows"] == 10


def test_a_rank_that_comes_as_the_other_commits_makes_nothing(
    tmp_path: Path, target_folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    """Pitfall 18: the other rank finishes between this one's look and its begin."""
    cfg, other = config(tmp_path, target_folder), []
    monkeypatch.setattr(answers, "_engine", lambda job: Scripted())
    begin = Store.begin

    def late(self, *inputs):
        monkeypatch.setattr(Store, "begin", begin)
        other.append(run_answers(cfg, store))
        return begin(self, *inputs)

    monkeypatch.setattr(Store, "begin", late)
    assert run_answers(cfg, store) == other[0]
    assert [path.name for path in other[0].path.parent.iterdir()] == ["v0"]
