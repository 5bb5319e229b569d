"""The stage end to end on the tiny target: artifacts, resume, refusals, plan, report."""

import dataclasses
import json
import shutil

import html_page
import pytest
import tiny
import tiny_evaluation
import tiny_summary
import torch
from tiny_errors import refused

from data_specs.evaluation import ROUNDS, read_rounds
from data_specs.manifest import write_json
from data_specs.results.summary import MARKDOWN, SUMMARY
from data_specs.sps import read_table
from pipeline.config import ConfigError
from pipeline.drafts.folders.checkpoint import save
from pipeline.drafts.registry import Start, build
from pipeline.prompts.chat import render_prompt
from pipeline.store.artifacts import Store
from pipeline.target.files import load_tokenizer
from pipeline.target.tensors import load_tensors
from stages.evaluate import run
from stages.evaluate.run import run_evaluate


@pytest.fixture(scope="module")
def draft_folder(target_folder, tmp_path_factory):
    return tiny_evaluation.draft_in(tmp_path_factory.mktemp("drafts") / "tiny-draft", target_folder)


@pytest.fixture
def config(target_folder, tmp_path):
    return tiny_evaluation.config_of(target_folder, tmp_path)


@pytest.fixture
def store(config):
    return Store(config.artifacts)


def answers(table):
    """(benchmark, prompt, turn, mode) -> the answer's ids."""
    found = {}
    for row in sorted(table.to_pylist(), key=lambda row: row["round"]):
        found.setdefault((row["benchmark"], row["prompt"], row["turn"], row["mode"]), []).extend(
            row["tokens"]
        )
    return found


def test_an_evaluation_from_a_foreign_folder(config, store, draft_folder, target_folder, capsys):
    made = run_evaluate(config, store, draft_folder)
    assert made.reference == "tiny-draft:v0"
    assert made.manifest.kind == "evaluation"
    made.verify()
    assert set(made.manifest.files) == {
        "rounds/gsm8k-00000.parquet", "rounds/gsm8k-00001.parquet", "rounds/gsm8k-00002.parquet",
        "rounds/mt_bench-00000.parquet", "summary.json", "summary.md",
        "report.html", "acceptance_by_position.png", "accepted_length.png",
    }  # fmt: skip
    assert made.manifest.config["sampler"] == {"temperature": 0.0}  # pitfall 40
    table = read_rounds(made.path)
    found = answers(table)
    assert len(found) == 2 * (5 + 3)  # both ways: five single turns, dialogues of two turns and of one
    tokenizer = load_tokenizer(target_folder, config.target)
    worded = "\nPlease reason step by step, and put your final answer within \\boxed{}."
    asked = tiny_evaluation.MATH[0] + worded
    first = render_prompt(tokenizer, [{"role": "user", "content": asked}], None)
    assert min(r["context"] for r in table.to_pylist() if r["benchmark"] == "gsm8k") == len(first)
    # Greedy, fp32: the answers with the draft are the plain ones (pitfall 41), and the report says so.
    for benchmark, prompt, turn, mode in found:
        assert found[benchmark, prompt, turn, mode] == found[benchmark, prompt, turn, "plain"]
    summary = json.loads((made.path / SUMMARY).read_text())
    counts = summary["benchmarks"]["mt_bench"]["counts"]
    assert (counts["prompts"], counts["answers"], counts["too_long"]) == (2, 3, 0)
    assert summary["benchmarks"]["gsm8k"]["metrics"]["same_answers"]["value"] == 1.0
    assert made.manifest.counts["tokens"] == sum(len(v) for key, v in found.items() if key[3] == "draft")
    shown = capsys.readouterr().out
    for text in (
        "gsm8k",
        "mt_bench",
        "macro average",
        "tiny-draft:v0",
        "stage=list",
        "temperature 0.0",
        "speedup",
    ):
        assert text in shown
    told = (made.path / MARKDOWN).read_text()
    # Figures, two tables by position, cost, and answers.
    assert told.count("| gsm8k |") == 5 and "(accepted_length.png)" in told
    text = (made.path / "report.html").read_text()
    page = html_page.Page(text)
    assert page.faults == [] and html_page.wrong_numbers(page, {"": summary}) == []
    assert ("", "gsm8k/accepted_length") in page.numbers
    assert made.manifest.parents["draft"] in text and str(store.root) not in text
    assert (made.path / "accepted_length.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_there_is_not_made_again(config, store, draft_folder, capsys, monkeypatch):
    made = run_evaluate(config, store, draft_folder)
    table = [line for line in capsys.readouterr().out.splitlines() if "gsm8k" in line]
    monkeypatch.setattr(run, "_speaker", None)  # loading anything would fail
    config.evaluate.chunk_prompts, config.evaluate.bootstrap = 3, 7  # neither changes what is measured
    again = run_evaluate(config, store, draft_folder)
    assert again.path == made.path
    shown = capsys.readouterr().out
    assert "tiny-draft:v0 (" in shown
    assert [line for line in shown.splitlines() if "gsm8k" in line] == table


def test_a_killed_evaluation_goes_on_where_it_was(config, store, draft_folder, monkeypatch):
    """The second unit dies half way; the rerun keeps the first, and ends as an unbroken run does."""
    config.evaluate.temperature = 1.0
    whole = run_evaluate(config, Store(config.artifacts + "-whole"), draft_folder)

    written = []
    write = run.write_rounds

    def dies(path, rows):
        if written:
            path.with_name(f".{path.name}.77.tmp").write_bytes(b"half")
            raise KeyboardInterrupt
        written.append(path.name)
        write(path, rows)

    monkeypatch.setattr(run, "write_rounds", dies)
    with pytest.raises(KeyboardInterrupt):
        run_evaluate(config, store, draft_folder)
    assert store.list() == []

    def counts(path, rows):
        written.append(path.name)
        write(path, rows)

    monkeypatch.setattr(run, "write_rounds", counts)
    made = run_evaluate(config, store, draft_folder)
    assert sorted(written) == [
        f"{unit}.parquet" for unit in ("gsm8k-00000", "gsm8k-00001", "gsm8k-00002", "mt_bench-00000")
    ]
    assert answers(read_rounds(made.path)) == answers(read_rounds(whole.path))
    assert not list((made.path / ROUNDS).glob(".*"))


def test_a_draft_that_is_an_artifact_is_the_parent_and_its_study_is_shown(config, store, draft_folder):
    work = store.begin("draft", "tiny_dspark", 1, "f" * 64, {}, {"target": {"thinking": None}})
    for path in draft_folder.iterdir():
        shutil.copy(path, work.path)
    draft = store.commit(work, {})
    config.evaluate.benchmarks, config.evaluate.files = ["gsm8k"], {"gsm8k": config.evaluate.files["gsm8k"]}
    study = tiny_summary.study()
    for parent, told in (("f", study), ("e", {})):  # the other draft's could not be shown
        work = store.begin("study", "tiny_dspark", 2, parent * 64, {"draft": parent * 64}, {})
        write_json(work.path / "study.json", told)
        store.commit(work, {})
    made = run_evaluate(config, store, draft)
    assert made.reference == "tiny_dspark:v0"
    assert made.manifest.parents == {"draft": "f" * 64}
    page = html_page.Page((made.path / "report.html").read_text())
    assert ("", "study/real/0/metrics/throughput") in page.numbers
    assert html_page.wrong_numbers(page, {"": json.loads((made.path / SUMMARY).read_text())}, study) == []


def test_a_setting_that_the_template_does_not_read_is_refused_before_any_model_is_loaded(
    config, store, draft_folder, monkeypatch
):
    config.target.thinking = False
    monkeypatch.delattr(run.Target, "load")
    with pytest.raises(ConfigError, match="^target.thinking=False: "):
        run_evaluate(config, store, draft_folder)


def test_a_draft_that_does_not_fit_is_refused_before_the_target_is_loaded(
    config, store, draft_folder, tmp_path, monkeypatch
):
    values = json.loads((draft_folder / "config.json").read_text()) | {"hidden_size": 48}
    shutil.copytree(draft_folder, tmp_path / "misfit")
    (tmp_path / "misfit" / "config.json").write_text(json.dumps(values))
    monkeypatch.setattr(run.Target, "load", None)
    with pytest.raises(ConfigError, match="hidden_size"):
        run_evaluate(config, store, tmp_path / "misfit")


def test_plan_prints_and_does_nothing(config, store, draft_folder, capsys):
    config.plan = True
    assert run_evaluate(config, store, draft_folder) is None
    shown = capsys.readouterr().out
    assert "Plan: evaluate tiny-draft on tiny" in shown
    assert [line.split()[:3] for line in shown.splitlines() if "gsm8k" in line] == [["gsm8k", "5", "5"]]
    assert [line.split()[:3] for line in shown.splitlines() if "mt_bench" in line] == [["mt_bench", "2", "3"]]
    assert "Nothing was done" in shown
    assert not store.root.exists()


def test_prompts_beyond_the_context_are_left_out_and_counted(config, store, draft_folder, tmp_path, capsys):
    path = tmp_path / "math.jsonl"
    path.write_text("".join(json.dumps({"question": q}) + "\n" for q in ("Short?", "Long " * 600)))
    config.evaluate.benchmarks, config.evaluate.files = ["gsm8k"], {"gsm8k": str(path)}
    made = run_evaluate(config, store, draft_folder)
    counts = json.loads((made.path / SUMMARY).read_text())["benchmarks"]["gsm8k"]["counts"]
    assert (counts["prompts"], counts["too_long"]) == (1, 1)
    assert "prompts longer than the target's context, left out: 1" in capsys.readouterr().out


def test_a_rank_that_comes_late_finds_the_others_work(config, store, draft_folder, monkeypatch):
    """While it loads its models another rank does all the chunks and commits: the folder is renamed away."""
    made = run_evaluate(config, store, draft_folder)
    late = Store(config.artifacts)
    looks = iter([None, None])  # before and after reading the prompts: not there yet
    monkeypatch.setattr(late, "find", lambda *_: next(looks, made))
    load = run._speaker

    def slow(*arguments):
        speaker = load(*arguments)
        (partial,) = made.path.parent.glob(".partial-*")
        shutil.rmtree(partial)
        return speaker

    monkeypatch.setattr(run, "_speaker", slow)
    assert run_evaluate(config, late, draft_folder).path == made.path
    assert [path.name for path in made.path.parent.iterdir()] == ["v0"]


def test_a_threshold_needs_a_confidence_head(config, store, tmp_path, target_folder):
    save(tiny.draft(confidence_head=False), tmp_path / "headless")
    config.evaluate.threshold = 0.5
    with refused(ConfigError, "evaluate.threshold=0.5", "headless"):
        run_evaluate(config, store, tmp_path / "headless")


@pytest.mark.parametrize(
    "algorithm,changes,taps,reduced",
    [
        ("dflash", {"sample_from_anchor": False, "block_size": 5}, [0, 2], False),
        ("eagle3", {"block_size": 4, "family": "llama"}, [0, 1, 2], True),
        ("mtp", {"block_size": 4}, [], False),
    ],
)
def test_every_kind_of_drafter_is_evaluated(config, store, tmp_path, algorithm, changes, taps, reduced):
    """Without taps, without a confidence head, with a reduced vocabulary: four drafts a block each."""
    tensors, ids = load_tensors(config.target), torch.arange(0, 272, 2) if reduced else None
    torch.manual_seed(1)
    draft = build(tiny.drafter(algorithm, depth=1, **changes), tensors, taps, 259, Start(ids=ids))
    save(draft, tmp_path / algorithm)
    config.evaluate.benchmarks, config.evaluate.files = ["gsm8k"], {"gsm8k": config.evaluate.files["gsm8k"]}
    config.evaluate.prompts = 2
    made = run_evaluate(config, store, tmp_path / algorithm)
    summary = json.loads((made.path / SUMMARY).read_text())["benchmarks"]["gsm8k"]
    assert summary["metrics"]["same_answers"]["value"] == 1.0
    rows = read_rounds(made.path).to_pylist()
    assert max(r["drafted"] for r in rows) == 4 and all(r["confidences"] is None for r in rows)


def test_a_head_that_is_not_the_targets_is_said(config, store, tmp_path, capsys):
    """Pitfall 25."""
    save(tiny.draft(), tmp_path / "random_head")
    assert run_evaluate(config, store, tmp_path / "random_head") is not None
    assert "warning: lm_head.weight" in capsys.readouterr().out


def test_several_prompts_at_a_time_and_a_profile(config, store, draft_folder, capsys):
    """Same answers, units of several waves, and SPS(B) of the target beside them."""
    alone = answers(read_rounds(run_evaluate(config, store, draft_folder).path))
    evaluate = dataclasses.replace(
        config.evaluate, batch=2, profile_tokens=6, profile_contexts=[16, 4], profile_repeats=1, profile=True
    )
    other = dataclasses.replace(config, evaluate=evaluate)
    capsys.readouterr()
    made = run_evaluate(other, store, draft_folder)
    assert made.reference == "tiny-draft:v1"
    assert answers(read_rounds(made.path)) == alone
    assert {"rounds/gsm8k-00000.parquet", "rounds/mt_bench-00000.parquet"} <= set(made.manifest.files)
    assert "rounds/gsm8k-00002.parquet" not in made.manifest.files  # of four prompts each, not of two
    profile = json.loads((made.path / SUMMARY).read_text())["profile"]
    assert [curve["context"] for curve in profile["contexts"]] == [4, 16]
    assert profile == json.loads((made.path / "profile.json").read_text())
    assert read_table(made.path / "sps.json").points[-1][0] == 6
    assert {"sps.png", "sps.json", "profile.json"} <= set(made.manifest.files)
    shown = capsys.readouterr().out
    assert "2 prompts at a time" in shown and "SPS(B)" in shown
    assert run_evaluate(other, store, draft_folder).reference == "tiny-draft:v1"
