"""One's own prompts through the stage: their name everywhere, and what of them the draft was trained on."""

import json

import html_page
import pytest
import tiny

from data_specs.answers import AnswerRow, write_answers
from data_specs.evaluation import read_rounds
from pipeline.config import Config, DataConfig, EvaluateConfig, SourceConfig, TrackingConfig
from pipeline.drafts.folders.checkpoint import save
from pipeline.drafts.registry import build
from pipeline.prompts.rows import prompt_key
from pipeline.store.artifacts import Store
from pipeline.target.tensors import load_tensors
from stages.evaluate.run import run_evaluate

TEXTS = [f"Why {i}?" for i in range(12)]


def draft_of(config):
    return Store(config.artifacts).resolve("draft", "tiny")


def key_of(text):
    return prompt_key([{"role": "user", "content": text}])


@pytest.fixture(scope="module")
def made(target_folder, tmp_path_factory):
    """(config, evaluation of ``mine`` and ``own``) by a draft that was trained on three of the five prompts of mine."""
    folder = tmp_path_factory.mktemp("own")
    store = Store(folder / "artifacts")
    answers = store.begin("answers", "why", 1, "a" * 64, {}, {})
    rows = [AnswerRow(key_of(t), "train", None, 0, [1], [2], "given", "[]", None, "{}") for t in TEXTS[1:4]]
    write_answers(answers.path / "00000.parquet", rows)
    store.commit(answers, {})
    store.commit(store.begin("cache", "why", 1, "c" * 64, {"answers": "a" * 64}, {}), {})
    draft = store.begin("draft", "tiny", 1, "d" * 64, {"cache": "c" * 64}, {})
    save(
        build(tiny.drafter(block_size=4, depth=1), load_tensors(tiny.located(target_folder)), [0, 2], 259),
        draft.path,
    )
    (folder / "mine.csv").write_text("question\n" + "".join(f"{text}\n" for text in TEXTS[:5]))
    (folder / "data.jsonl").write_text("".join(json.dumps({"prompt": t}) + "\n" for t in TEXTS))
    config = Config(
        target=tiny.located(target_folder), tracking=TrackingConfig(mode="none"), artifacts=str(store.root),
        data=DataConfig("why", [SourceConfig(str(folder / "data.jsonl"))], heldout=0.0, benchmark=0.5),
        evaluate=EvaluateConfig(
            benchmarks=["mine", "own"], files={"mine": str(folder / "mine.csv")}, max_new_tokens=4, bootstrap=5,
            calibrate=False, baseline=False,
        ),
    )  # fmt: skip
    return config, run_evaluate(config, store, store.commit(draft, {}))


def test_rounds_are_of_mine_and_of_what_was_held_back(made):
    rows = read_rounds(made[1].path).to_pylist()
    held = [TEXTS[0], TEXTS[5]]  # whose hashes are below 0.5
    assert {r["key"] for r in rows if r["benchmark"] == "mine"} == {key_of(t) for t in TEXTS[:5]}
    assert {r["key"] for r in rows if r["benchmark"] == "own"} == {key_of(t) for t in held}
    assert "rounds/mine-00000.parquet" in made[1].manifest.files


def test_table_page_and_last_screen_count_what_was_trained_on(made, capsys):
    config, evaluation = made
    facts = json.loads((evaluation.path / "summary.json").read_text())["facts"]
    assert facts["prompts"] == {"mine": 5, "own": 2}
    assert facts["trained"] == {"mine": 3, "own": 0}
    page = html_page.Page((evaluation.path / "report.html").read_text())
    assert page.faults == [] and ("", "mine/accepted_length") in page.numbers
    told = "mine: tiny was trained on 3 of these 5 prompts"
    capsys.readouterr()
    run_evaluate(config, Store(config.artifacts), draft_of(config))  # it is there: only shown
    screen = " ".join(capsys.readouterr().out.split())
    markdown, shown = ((evaluation.path / name).read_text() for name in ("summary.md", "report.html"))
    for text in (markdown, shown, screen):
        assert told in text
    assert "| mine | 5 (3 trained on) |" in markdown and "5 (3 trained on)" in screen
    assert '<span class="aside">3 trained on</span>' in shown
