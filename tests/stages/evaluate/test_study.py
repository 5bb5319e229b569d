"""The stage on the tiny target: artifact, resume, what is taken over, refusals, plan."""

import json

import pytest
import torch

from data_specs.calibration import CalibrationFileError
from data_specs.manifest import read_json
from data_specs.sps import SpsError
from data_specs.study import RESULT, StudyError
from pipeline.artifacts import Store
from pipeline.config import Config, DrafterConfig, EvaluateConfig, StudyConfig, TargetConfig, TrackingConfig
from pipeline.drafts.checkpoint import save
from pipeline.drafts.registry import build
from pipeline.target_files import load_tensors
from stages.evaluate import study, study_report
from stages.evaluate.study import run_study

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
            arrivals=[0.5],
        ),
        tracking=TrackingConfig(mode="none"), artifacts=str(tmp_path / "artifacts"),
    )  # fmt: skip


def test_a_study_that_is_killed_goes_on_and_others_take_over_its_points(
    config, draft_folder, monkeypatch, capsys
) -> None:
    store = Store(config.artifacts)
    whole, served = study.write_point, []
    monkeypatch.setattr(
        study_report, "save", lambda figure, path: path.touch()
    )  # drawing takes longer than all else

    def dies(folder, unit, measured) -> None:
        served.append(unit)
        if unit == "c0002-plain-0":
            raise KeyboardInterrupt
        whole(folder, unit, measured)

    monkeypatch.setattr(study, "write_point", dies)
    with pytest.raises(KeyboardInterrupt):
        run_study(config, store, draft_folder)
    assert served == ["c0001-plain-0", "c0001-fixed_1-0", "c0001-algorithm_1-0", "c0002-plain-0"]
    monkeypatch.setattr(study, "write_point", lambda *rest: (served.append(rest[1]), whole(*rest)))
    made = run_study(config, store, draft_folder)
    assert served[3:] == ["c0002-plain-0", "c0002-plain-0", "c0002-fixed_1-0", "c0002-algorithm_1-0"]
    assert "4 of 7 points are there already" in capsys.readouterr().out
    made.verify()
    assert made.reference == "tiny-draft:v0" and made.manifest.counts["points"] == 6
    assert {name.split("/")[0] for name in made.manifest.files} == {
        "steps", "times", "pool.parquet", "study.json", "study.md", "report.html", "study_front_measured.png",
        "study_front_box.png", "study_load_measured.png", "study_load_box.png",
    }  # fmt: skip
    check_result(read_json(made.path / RESULT))

    monkeypatch.setattr(study.Server, "load", None)  # loading anything would fail
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
    assert [arm.name for arm in study.make_plan(config, silent).arms] == ["plain", "fixed_1"]
    config.study.in_chain = False
    config.study.simulated_concurrencies = [1, 5]
    with pytest.raises(SpsError, match="table box: points: reaches B = 16, needed is B = 20"):
        run_study(config, store, draft_folder)
    config.study.simulated_concurrencies = [4]
    for names, message in (
        (["fixed_9"], "fixed_9: the draft proposes 1 to 3 tokens"),
        (["best"], "got best"),
    ):
        config.study.policies = names
        with pytest.raises(StudyError, match=message):
            run_study(config, store, draft_folder)


def test_a_plan_measures_nothing(config, draft_folder, capsys) -> None:
    config.plan = True
    store = Store(config.artifacts)
    assert run_study(config, store, draft_folder) is None
    assert store.list() == [] and "6 points, about" in capsys.readouterr().out
