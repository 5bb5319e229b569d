"""Calibration and sweep through the stage, on a target that the draft half knows: a bigram model with a little more."""

import copy
import dataclasses
import json
import shutil

import numpy as np
import pytest
import tiny
import torch
from tiny_errors import refused
from transformers import Qwen3ForCausalLM

from data_specs.calibration import CALIBRATION, CalibrationFileError, draft_contents
from data_specs.evaluation import HELDOUT_ROUNDS, EvaluationError, read_rounds
from pipeline.confidence import temperatures
from pipeline.confidence.rounds import observe
from pipeline.confidence.temperatures import raw_thresholds
from pipeline.config import Config, ConfigError, DataConfig, EvaluateConfig, SourceConfig, TrackingConfig
from pipeline.decoding import calibrate
from pipeline.decoding.job import make_job, selected_prompts
from pipeline.drafts.folders.checkpoint import save
from pipeline.drafts.heads import ConfidenceHead
from pipeline.drafts.registry import build
from pipeline.prompts.heldout import TooFewError
from pipeline.prompts.rows import prompt_key, split_of
from pipeline.store.artifacts import Store
from pipeline.target.tensors import load_tensors
from stages.evaluate import run
from stages.evaluate.run import run_evaluate

DRAFTS = 4
QUESTIONS = [f"Why {i}?" for i in range(24)]
HELD = [q for q in QUESTIONS if split_of(prompt_key([{"role": "user", "content": q}]), 0.5, 0.0) == "heldout"]
CHAT = [["Hello there.", "Tell me more."], ["What is rain?"], ["Sing."]]


@pytest.fixture(scope="module")
def half_known(tmp_path_factory):
    """(target, draft): the draft's Markov head holds the target's bigrams, which its small layers change a little."""
    folder = tmp_path_factory.mktemp("half_known")
    tiny.save_target(folder / "target", seed=5)
    model = Qwen3ForCausalLM.from_pretrained(folder / "target")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_(0.03)
    model.save_pretrained(folder / "target")
    tensors = load_tensors(tiny.located(folder / "target"))
    torch.manual_seed(1)
    draft = build(
        tiny.drafter(block_size=DRAFTS, depth=1, markov_rank=tiny.HIDDEN), tensors, [0, 2], 259
    ).eval()
    with torch.no_grad():
        embedding = tensors.embedding.float()
        draft.markov_head.markov_w1.weight.copy_(embedding * embedding.pow(2).mean(-1, keepdim=True).rsqrt())
        draft.markov_head.markov_w2.weight.copy_(tensors.head.float())
        draft.norm.weight.fill_(0.25)
        draft.confidence_head.proj.weight.normal_(std=0.15)
        draft.confidence_head.proj.bias.fill_(1.0)
    save(draft, folder / "draft")
    return folder / "target", folder / "draft"


def config_of(target, folder, **changes):
    (folder / "chat.jsonl").write_text("".join(json.dumps({"turns": t}) + "\n" for t in CHAT))
    (folder / "data.jsonl").write_text("".join(json.dumps({"prompt": q}) + "\n" for q in QUESTIONS))
    values = {
        "benchmarks": ["mt_bench"], "files": {"mt_bench": str(folder / "chat.jsonl")}, "max_new_tokens": 16,
        "bootstrap": 5, "chunk_prompts": 2, "calibration_prompts": 5, "baseline": False,
    }  # fmt: skip
    return Config(
        target=tiny.located(target), evaluate=EvaluateConfig(**(values | changes)),
        data=DataConfig("why", [SourceConfig(str(folder / "data.jsonl"))], heldout=0.5),
        tracking=TrackingConfig(mode="none"), artifacts=str(folder / "artifacts"),
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_at_a_time():
    """Units of two prompts, so that there is something between them; test_batch.py has prompts together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "TOGETHER", 1)
        for module in (calibrate, temperatures):
            patch.setattr(module, "LEAST_ROUNDS", 10)
        yield


@pytest.fixture
def case(half_known, tmp_path):
    """(config, store, draft) of an evaluation of its own."""
    shutil.copytree(half_known[1], tmp_path / "half")
    config = config_of(half_known[0], tmp_path)
    return config, Store(config.artifacts), tmp_path / "half"


@pytest.fixture(scope="module")
def made(half_known, tmp_path_factory):
    """(config, draft, evaluation) of one whole run with calibration and sweep; the draft is an artifact."""
    config = config_of(half_known[0], tmp_path_factory.mktemp("made"), sweep=True)
    store = Store(config.artifacts)
    work = store.begin("draft", "half", 1, "f" * 64, {}, {})
    for path in half_known[1].iterdir():
        shutil.copy(path, work.path)
    draft = store.commit(work, {})
    return config, draft, run_evaluate(config, store, draft)


def summary(evaluation):
    return json.loads((evaluation.path / "summary.json").read_text())


def calibration_in(folder):
    return json.loads((folder / CALIBRATION).read_text())


def test_a_calibration_is_kept_in_the_evaluation_and_the_draft_is_left_as_it_is(made):
    _, draft, evaluation = made
    kept = calibration_in(evaluation.path)
    assert {path.name for path in draft.path.iterdir()} == {"manifest.json", *draft.manifest.files}
    assert CALIBRATION not in draft.manifest.files
    draft.verify()
    evaluation.verify()
    assert {f"calibration/heldout-0000{i}.parquet" for i in range(3)} < set(evaluation.manifest.files)
    assert {CALIBRATION, "reliability.png", "threshold_sweep.png"} < set(evaluation.manifest.files)
    assert (kept["prompts"], kept["data"], kept["sampler"]) == (5, "why", {"temperature": 0.0})
    assert sorted(kept["keys"]) == sorted(prompt_key([{"role": "user", "content": q}]) for q in HELD[:5])


def test_it_is_fitted_on_whole_chains_of_held_out_prompts_only(made):
    rows = read_rounds(made[2].path, HELDOUT_ROUNDS).to_pylist()
    assert {(row["benchmark"], row["mode"]) for row in rows} == {("heldout", "draft")}
    assert {row["prompt"] for row in rows} == set(range(5))
    assert max(row["drafted"] for row in rows) == DRAFTS


def test_the_summary_tells_before_and_after_on_the_benchmarks(made):
    found = summary(made[2])["calibration"]
    assert set(found) == {"prompts", "rounds", "data", "temperatures", "before", "after"}
    rounds = observe(read_rounds(made[2].path), DRAFTS)
    assert [q["rounds"] for q in found["before"]] == [(rounds.proposed > k).sum() for k in range(DRAFTS)]
    for name in ("before", "after"):
        for q in found[name]:
            assert set(q) == {"rounds", "ece", "brier", "auc", "predicted", "observed", "counts"}
            assert [len(q[key]) for key in ("predicted", "observed", "counts")] == [20] * 3
    # One temperature keeps the order of the first draft's confidences.
    assert found["before"][0]["auc"] == pytest.approx(found["after"][0]["auc"])
    text = (made[2].path / "summary.md").read_text()
    assert "## Calibration" in text and "5 held-out prompts of why" in text
    assert "## Threshold sweep" in text and "(threshold_sweep.png)" in text


def test_the_sweep_equals_decoding_with_each_threshold(made):
    """Computed from the record or decoded anew: the same figures as if every answer had been decoded with it."""
    config, draft, evaluation = made
    sweep = summary(evaluation)["sweep"]
    assert [row["threshold"] for row in sweep] == [k / 10 for k in range(10)]
    assert {row["exact"] + row["anew"] for row in sweep} == {4}  # answers
    assert sweep[0]["anew"] == 0 and any(row["exact"] and row["anew"] for row in sweep)
    assert sweep[9]["rejected"] < sweep[0]["rejected"]
    job = make_job(config, draft)
    fitted = calibration_in(evaluation.path)["temperatures"]
    speaker = dataclasses.replace(run._speaker(config, job), temperatures=tuple(fitted))
    prompts = selected_prompts(config, job.benchmarks)["mt_bench"]
    for row in (sweep[5], sweep[6]):
        other = dataclasses.replace(speaker, threshold=row["threshold"])
        rows = [r for prompt in prompts for r in other.answer(prompt) if r["round"]]
        accepted = sum(r["accepted"] for r in rows)
        assert row["accepted"] == pytest.approx(accepted / len(rows))
        assert row["rejected"] == pytest.approx((sum(r["proposed"] for r in rows) - accepted) / len(rows))
        assert row["accepted_length"] == pytest.approx(sum(r["emitted"] for r in rows) / len(rows))


def test_another_evaluation_uses_what_is_there_and_cuts_by_it(made, capsys, monkeypatch):
    config, draft, first = made
    other = copy.deepcopy(config)
    other.evaluate.threshold, other.evaluate.sweep = 0.6, False
    monkeypatch.setattr(calibrate, "fitted", None)  # a fit would fail
    evaluation = run_evaluate(other, Store(other.artifacts), draft)
    assert f"Reusing the calibration {first.path / CALIBRATION} (5 prompts of why" in capsys.readouterr().out
    assert not list((evaluation.path / HELDOUT_ROUNDS).iterdir())
    kept = calibration_in(evaluation.path)
    found = observe(read_rounds(evaluation.path), DRAFTS)
    least = np.array(raw_thresholds(0.6, kept["temperatures"]), dtype=np.float32)
    assert not (found.confidences < least).any() and (found.drafted < DRAFTS).any()
    assert "threshold 0.6 on calibrated confidences" in (evaluation.path / "summary.md").read_text()


def test_a_killed_calibration_goes_on_where_it_was(case, made, monkeypatch, capsys):
    config, store, draft = case
    write, written = run.write_rounds, []

    def dies(path, rows):
        if len(written) == 1:
            raise KeyboardInterrupt
        written.append(f"{path.parent.name}/{path.name}")
        write(path, rows)

    monkeypatch.setattr(run, "write_rounds", dies)
    with pytest.raises(KeyboardInterrupt):
        run_evaluate(config, store, draft)
    written.append("killed here")
    evaluation = run_evaluate(config, store, draft)
    assert written == [
        "calibration/heldout-00000.parquet", "killed here", "calibration/heldout-00001.parquet",
        "calibration/heldout-00002.parquet", "rounds/mt_bench-00000.parquet", "rounds/mt_bench-00001.parquet",
    ]  # fmt: skip
    assert "(calibration): 1 of 3" in capsys.readouterr().out
    assert calibration_in(evaluation.path)["temperatures"] == calibration_in(made[2].path)["temperatures"]
    run_evaluate(config, store, draft)
    assert "Reusing the evaluation of half" in capsys.readouterr().out and len(written) == 6
    assert not (draft / CALIBRATION).exists()


def test_a_rank_that_comes_late_finds_the_others_work(made, monkeypatch):
    """All was decoded and committed while it loaded its models: there is no folder to keep a calibration in."""
    config, draft, evaluation = made
    late = Store(config.artifacts)
    looks = iter([None, None])
    monkeypatch.setattr(late, "find", lambda *_: next(looks, evaluation))
    load = run._speaker

    def slow(*arguments):
        speaker = load(*arguments)
        (partial,) = evaluation.path.parent.glob(".partial-*")
        shutil.rmtree(partial)
        return speaker

    monkeypatch.setattr(run, "_speaker", slow)
    assert run_evaluate(config, late, draft).path == evaluation.path
    assert not list(evaluation.path.parent.glob(".partial-*"))


def test_a_reported_prompt_is_never_fitted_on(case, made):
    """Not in a new fit, and not by way of a calibration that was fitted on it before."""
    config, store, draft = case
    shutil.copy(made[2].path / CALIBRATION, draft)
    before = (draft / CALIBRATION).read_bytes()
    with open(config.evaluate.files["mt_bench"], "a") as file:
        file.write(json.dumps({"turns": [HELD[1]]}) + "\n")
    evaluation = run_evaluate(config, store, draft)
    expected = [HELD[0], *HELD[2:6]]
    keys = sorted(prompt_key([{"role": "user", "content": q}]) for q in expected)
    assert calibration_in(evaluation.path)["keys"] == keys
    assert (draft / CALIBRATION).read_bytes() == before


def test_another_drafts_calibration_is_refused(case, made):
    config, store, draft = case
    values = calibration_in(made[2].path) | {"draft": "e" * 64}
    (draft / CALIBRATION).write_text(json.dumps(values))
    with refused(CalibrationFileError, draft / CALIBRATION, "draft", "e" * 12):
        run_evaluate(config, store, draft)


def test_confidences_that_are_none_are_refused_by_name(case, monkeypatch):
    config, store, draft = case
    monkeypatch.setattr(ConfidenceHead, "forward", lambda self, hidden, _: hidden[..., 0] * torch.nan)
    place = ("prompt 0", "turn 0", "round 1")
    with refused(EvaluationError, "heldout", *place, "confidence", "nan"):
        run_evaluate(config, store, draft)
    config.evaluate.calibrate = False
    for config.evaluate.threshold in (0.0, 0.5):
        with refused(EvaluationError, "mt_bench", *place, "nan"):
            run_evaluate(config, store, draft)


def test_an_export_keeps_the_calibration_that_it_was_made_with(made, monkeypatch):
    """Its draft has another fingerprint (config.json says more) and the same calibration, now of these files."""
    config, draft, first = made
    config, store = copy.deepcopy(config), Store(config.artifacts)
    work = store.begin("export", "half_vllm", 1, "9" * 64, {"draft": "f" * 64}, {})
    for path in draft.path.glob("model*"):
        shutil.copy(path, work.path)
    said = json.loads((draft.path / "config.json").read_text())
    (work.path / "config.json").write_text(json.dumps(said | {"served_by": "vllm"}))
    values = calibration_in(first.path) | {"draft": draft_contents(work.path)}
    (work.path / CALIBRATION).write_text(json.dumps(values))
    export = store.commit(work, {})
    config.evaluate.sweep = False
    with monkeypatch.context() as patch:
        patch.setattr(calibrate, "fitted", None)  # a fit would fail
        evaluation = run_evaluate(config, store, export.path)
    assert (calibration_in(evaluation.path), evaluation.manifest.name) == (values, "half_vllm")
    export.verify()
    config.evaluate.calibration_prompts = 4
    other = run_evaluate(config, store, export.path)
    assert calibration_in(other.path)["prompts"] == 4
    assert calibration_in(export.path) == values
    export.verify()


def few(case, calibrate=None):
    """An evaluation whose one held-out prompt gives fewer rounds than a calibration needs."""
    config, store, draft = case
    config.evaluate.calibration_prompts, config.evaluate.max_new_tokens = 1, 4
    config.evaluate.calibrate = calibrate
    return run_evaluate(config, store, draft)


def test_too_few_rounds_are_refused_with_both_numbers(case, capsys, monkeypatch):
    """Two rounds gave a temperature of 100. An evaluation that did not insist goes on without, and says why."""
    with pytest.raises(TooFewError, match=r"at least 10 rounds .* got [1-4] from 1 prompts of data=why"):
        few(case, calibrate=True)
    evaluation = few(case)
    found = summary(evaluation)
    assert found["calibration"] is None and "at least 10 rounds" in found["calibration_refused"]
    assert CALIBRATION not in evaluation.manifest.files
    screen = " ".join(capsys.readouterr().out.split())
    markdown, page = ((evaluation.path / name).read_text() for name in ("summary.md", "report.html"))
    for text in (screen, markdown, page):
        assert "Not calibrated: calibration: expected at least 10 rounds" in text
    monkeypatch.setattr(run, "_speaker", None)  # it is there, and so is the answer
    with pytest.raises(TooFewError, match="at least 10 rounds"):
        few(case, calibrate=True)


def test_prompts_that_were_trained_on_are_no_held_out_ones(case, monkeypatch):
    """Those that other data hold back may be what the draft has seen."""
    config, store, draft = case
    keys = [prompt_key([{"role": "user", "content": q}]) for q in HELD]
    monkeypatch.setattr("pipeline.decoding.origin.trained_keys", lambda *_: frozenset(keys[:3]))
    assert calibration_in(run_evaluate(config, store, draft).path)["keys"] == sorted(keys[3:8])
    monkeypatch.setattr("pipeline.decoding.origin.trained_keys", lambda *_: frozenset(keys))
    config.evaluate.calibrate, config.seed = True, 1
    with pytest.raises(TooFewError, match="data.heldout=0.5: data=why"):
        run_evaluate(config, store, draft)


def test_the_fingerprint_covers_the_calibration(case):
    config, _, draft = case

    def fingerprint(**changes):
        other = copy.deepcopy(config)
        other.data.heldout = changes.pop("heldout", other.data.heldout)
        for name, value in changes.items():
            setattr(other.evaluate, name, value)
        return make_job(other, draft).fingerprint

    assert fingerprint() == fingerprint(calibrate=True)
    others = [fingerprint(calibrate=False), fingerprint(calibration_prompts=4), fingerprint(heldout=0.4)]
    others += [fingerprint(sweep=True), fingerprint()]
    assert len(set(others)) == 5
    assert fingerprint(calibrate=False) == fingerprint(calibrate=False, calibration_prompts=4, heldout=0.4)


@pytest.mark.parametrize("name", ["calibrate", "sweep"])
def test_without_a_confidence_head_it_is_refused_by_name(case, tmp_path, name):
    config, store, _ = case
    save(tiny.draft(confidence_head=False), tmp_path / "headless")
    setattr(config.evaluate, name, True)
    with refused(ConfigError, f"evaluate.{name}=true", tmp_path / "headless"):
        run_evaluate(config, store, tmp_path / "headless")


def test_without_held_out_prompts_the_keys_are_named(case):
    config, store, draft = case
    config.data.heldout = 0.0
    with refused(ConfigError, "data.heldout=0.0", "evaluate.calibrate=false"):
        run_evaluate(config, store, draft)
    config.data.heldout = 0.6
    work = store.begin("draft", "half", 1, "f" * 64, {}, {"data": {"name": "why", "heldout": 0.5}})
    for path in draft.iterdir():
        shutil.copy(path, work.path)
    with refused(ConfigError, "data.heldout=0.6", "data.heldout=0.5"):
        run_evaluate(config, store, store.commit(work, {}))


def test_drafts_are_chosen_in_the_calibration_as_in_the_evaluation(half_known, tmp_path, capsys):
    """The record, the calibration and every report say how."""
    config = config_of(half_known[0], tmp_path, temperature=1.0, draft_sampling="greedy")
    shutil.copytree(half_known[1], tmp_path / "half")
    made = run_evaluate(config, Store(config.artifacts), tmp_path / "half")
    acting = {"temperature": 1.0, "top_p": None, "top_k": None, "min_p": None, "draft_sampling": "greedy"}
    assert made.manifest.config["sampler"] == summary(made)["facts"]["sampler"] == acting
    assert calibration_in(made.path)["sampler"] == acting
    assert "draft_sampling greedy" in capsys.readouterr().out
    assert "draft_sampling" in (made.path / "report.html").read_text()
