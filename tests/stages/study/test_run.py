"""The stage on the tiny target: artifact, resume, what is taken over, refusals, plan."""

import dataclasses
import json

import numpy as np
import pytest
import tiny_summary
import torch
from safetensors.torch import load_file, save_file

from data_specs.calibration import Calibration, CalibrationFileError, draft_contents, write_calibration
from data_specs.manifest import read_json, write_json
from data_specs.sps import SpsError
from data_specs.study import RESULT, StudyError
from pipeline.config import Config, DrafterConfig, EvaluateConfig, StudyConfig, TargetConfig, TrackingConfig
from pipeline.drafts.folders.checkpoint import save
from pipeline.drafts.registry import build
from pipeline.prompts.benchmarks import load_benchmark, load_prompts
from pipeline.report import markdown
from pipeline.store.artifacts import Store
from pipeline.target.files import identity
from pipeline.target.tensors import load_tensors
from stages.study import run
from stages.study.run import run_study

TABLE = {
    "name": "box", "machine": "a box", "model": "tiny", "source": "model", "note": "not measured", "context": 0,
    "position_seconds": 1e-6, "draft": [{"requests": 1, "seconds": 1e-3}, {"requests": 4, "seconds": 2e-3}],
    "points": [{"tokens": 1, "steps_per_second": 100}, {"tokens": 16, "steps_per_second": 25}],
}  # fmt: skip


def drafted(target_folder, folder, **changes):
    config = TargetConfig(name="tiny", path=str(target_folder), dtype="float32", device="cpu")
    torch.manual_seed(1)
    settings = {"block_size": 3, "depth": 1, "markov_rank": 4} | changes
    drafter = DrafterConfig(name="dspark", algorithm="dspark", **settings)
    save(build(drafter, load_tensors(config), [0, 2], mask_token_id=259).eval(), folder / "tiny-draft")
    return folder / "tiny-draft"


@pytest.fixture(scope="module")
def draft_folder(target_folder, tmp_path_factory):
    return drafted(target_folder, tmp_path_factory.mktemp("drafts"))


@pytest.fixture
def config(target_folder, tmp_path):
    prompts, table = tmp_path / "math.jsonl", tmp_path / "box.json"
    prompts.write_text("".join(json.dumps({"question": f"{i} and {i}?"}) + "\n" for i in range(3)))
    table.write_text(json.dumps(TABLE))
    return Config(
        target=TargetConfig(name="tiny", path=str(target_folder), dtype="float32", device="cpu"),
        evaluate=EvaluateConfig(benchmarks=["gsm8k"], files={"gsm8k": str(prompts)}),
        study=StudyConfig(
            policies=["plain", "fixed_1", "algorithm_1"], calibrated=False, max_new_tokens=6, concurrencies=[1, 2],
            requests_per_slot=1, least_requests=3, timing_tokens=8, sps=[str(table)], simulated_concurrencies=[1, 4],
            simulated_prefill_tokens=16, arrivals=[0.5],
        ),
        tracking=TrackingConfig(mode="none"), artifacts=str(tmp_path / "artifacts"),
    )  # fmt: skip


def test_a_study_that_is_killed_goes_on_and_others_take_over_its_points(
    config, draft_folder, monkeypatch, capsys
) -> None:
    store = Store(config.artifacts)
    whole, served = run.write_point, []
    monkeypatch.setattr(markdown, "png", lambda path, drawings: path.touch())  # drawing takes longest of all

    def dies(folder, unit, measured) -> None:
        served.append(unit)
        if unit == "c0002-plain-0":
            raise KeyboardInterrupt
        whole(folder, unit, measured)

    monkeypatch.setattr(run, "write_point", dies)
    with pytest.raises(KeyboardInterrupt):
        run_study(config, store, draft_folder)
    assert served == ["c0001-plain-0", "c0001-fixed_1-0", "c0001-algorithm_1-0", "c0002-plain-0"]
    monkeypatch.setattr(run, "write_point", lambda *rest: (served.append(rest[1]), whole(*rest)))
    made = run_study(config, store, draft_folder)
    assert served[3:] == ["c0002-plain-0", "c0002-plain-0", "c0002-fixed_1-0", "c0002-algorithm_1-0"]
    assert "4 of 7 points are there already" in capsys.readouterr().out
    made.verify()
    assert made.reference == "tiny-draft:v0" and made.manifest.counts["points"] == 6
    assert {name.split("/")[0] for name in made.manifest.files} == {
        "steps", "times", "pool.parquet", "study.json", "study.md", "report.html", "study_front_measured.png",
        "study_front_box.png", "study_load_measured.png", "study_load_box.png", "study_arrivals_box.png",
    }  # fmt: skip
    check_result(read_json(made.path / RESULT))

    monkeypatch.setattr(run.InProcessServer, "load", None)  # loading anything would fail
    assert run_study(config, store, draft_folder).path == made.path
    config.study.sla = [1.0]
    assert run_study(config, store, draft_folder).reference == "tiny-draft:v1"
    shown = capsys.readouterr().out
    assert "is already there: tiny-draft:v0" in shown and "measured for tiny-draft:v0 is taken over" in shown
    assert len(served) == 7  # nothing was served again


def check_result(result) -> None:
    """Every point measured and predicted; every policy and fixed length simulated; fronts and checks."""
    real = {(e["policy"], e["concurrency"]): e["metrics"] for e in result["real"]}
    policies = ("plain", "fixed_1", "algorithm_1")
    assert set(real) == {(name, c) for name in policies for c in (1, 2)}
    assert {(p["policy"], p["concurrency"]) for p in result["prediction"]} == set(real)
    closed = {
        (e["policy"], e["concurrency"]): e
        for e in result["simulated"]
        if e["sps"] == "box" and not e["arrival"]
    }
    assert set(closed) == {(name, c) for name in (*policies, "fixed_2", "fixed_3") for c in (1, 4)}
    opened = [e for e in result["simulated"] if e["arrival"]]
    assert [e["policy"] for e in opened] == list(policies) and opened[0]["metrics"]["idle_share"] > 0
    for (name, _), found in real.items():
        assert found["tokens"] <= 3 * 6 and found["throughput"] > 0
        assert found["budget"] == 1.0 if name == "plain" else found["budget"] >= 1.0
    for predicted in (e for e in result["simulated"] if e["sps"] == "this machine"):
        assert predicted["metrics"]["tokens"] == real[predicted["policy"], predicted["concurrency"]]["tokens"]
    assert set(result["fronts"]) == {"measured", "box"}
    assert set(result["checks"]["box"]) == {"algorithm_1"}
    assert result["facts"]["prompts"] == 3 and result["facts"]["notes"] == {"box": "not measured"}


def test_refusals(config, draft_folder, target_folder, tmp_path) -> None:
    store = Store(config.artifacts)
    with pytest.raises(CalibrationFileError, match="calibration.json: no such file"):
        config.study.calibrated = True
        run_study(config, store, draft_folder)
    config.study.calibrated = False
    silent = drafted(target_folder, tmp_path, confidence_head=False)
    with pytest.raises(StudyError, match="algorithm_1 needs a confidence head"):
        run_study(config, store, silent)
    config.study.in_chain = True  # a chain of some hours does not end with a refusal
    assert [arm.name for arm in run.make_plan(config, silent).arms] == ["plain", "fixed_1"]
    config.study.in_chain = False
    config.study.simulated_concurrencies = [1, 5]
    with pytest.raises(SpsError, match="table box: points: reaches B = 16, needed is B = 20"):
        run_study(config, store, draft_folder)
    config.study.simulated_concurrencies = [4]
    config.study.policies = ["fixed_9"]
    with pytest.raises(StudyError, match="fixed_9: .*1 to 3"):
        run_study(config, store, draft_folder)


SURE = 0.9933071490757153  # sigmoid(5)
FLAT = 0.5012499973958399  # sigmoid(5 / 1000)


@pytest.fixture
def calibrated(target_folder, tmp_path):
    """A folder with a draft that is always as sure, and a calibration that is as extreme."""
    folder = drafted(target_folder, tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["confidence_head.proj.weight"].mul_(1e-12)
    weights["confidence_head.proj.bias"].fill_(5.0)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    made = Calibration(
        draft=draft_contents(folder), target=identity(target_folder), sampler={"temperature": 0.0}, dtype="bfloat16",
        thinking=None, data="d", made_with="m", keys=["k"], rounds=1, temperatures=[1000.0] * 3, before=[], after=[],
    )  # fmt: skip
    write_calibration(folder, made)
    return folder, made


@pytest.mark.parametrize(("use", "confidence"), [(True, FLAT), (False, SURE)])
def test_temperatures_reach_the_engine_and_the_pool(
    config, calibrated, monkeypatch, capsys, use, confidence
) -> None:
    """Calibrated, no draft reaches the threshold of 0.6; as they are, all do."""
    folder, made = calibrated
    monkeypatch.setattr(markdown, "png", lambda path, drawings: path.touch())
    config.study.calibrated, config.study.policies, config.study.threshold = use, ["threshold"], 0.6
    config.study.concurrencies, config.study.sps = [2], []
    store = Store(config.artifacts)
    for number, temperatures in (("1", made.temperatures), ("2", [1.0] * 3)):
        work = store.begin("evaluation", "d", 1, number * 64, {"draft": draft_contents(folder)}, {})
        told = tiny_summary.full()
        told["calibration"]["temperatures"] = temperatures
        told["calibration"]["before"][0]["ece"] = float(number) / 10
        write_json(work.path / "summary.json", told)
        store.commit(work, {})
    found = run_study(config, store, folder)
    pool = np.concatenate([answer.confidences for answer in run.read_pool(found.path)])
    assert [pool.min(), pool.max()] == pytest.approx([confidence] * 2)
    (real,) = read_json(found.path / RESULT)["real"]
    assert (real["metrics"]["budget"] == 1.0) == use
    shown = " ".join(capsys.readouterr().out.split())
    line = "calibrated confidence: ECE 7.8 % -> 1.6 % on average, by position 10.0 % -> 1.1 %, 5.7 % -> 2.0 %"
    assert (line in shown) == use  # of the evaluation that has these temperatures


def test_a_foreign_calibration_is_refused_by_name(config, calibrated) -> None:
    folder, made = calibrated
    config.study.calibrated, store = True, Store(config.artifacts)
    key = load_prompts(load_benchmark("gsm8k"), config.evaluate.files["gsm8k"])[1].key
    for change, message in (
        (
            {"target": "u" * 64},
            "calibration.json: target: expected .*, got uuuuuuuuuuuu...; python -m pipeline",
        ),
        (
            {"sampler": {"temperature": 1.0}},
            "sampler: expected {'temperature': 0.0}, got {'temperature': 1.0}",
        ),
        ({"thinking": True}, "thinking: expected None, got True"),
        ({"keys": ["k", key]}, "keys: expected none of the prompts of this run, got 1 of them"),
    ):
        write_calibration(folder, dataclasses.replace(made, **change))
        with pytest.raises(CalibrationFileError, match=message):
            run_study(config, store, folder)
    write_calibration(folder, made)
    assert run.make_plan(config, folder).temperatures == [1000.0] * 3  # another type only rounds


def test_a_plan_measures_nothing(config, draft_folder, capsys) -> None:
    config.plan = True
    store = Store(config.artifacts)
    assert run_study(config, store, draft_folder) is None
    assert store.list() == [] and "6 points, about" in capsys.readouterr().out
