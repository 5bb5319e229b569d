"""The stage on the tiny target: artifact, resume, what is taken over, refusals, plan."""

import numpy as np
import pytest
import tiny_study
import tiny_summary
from safetensors.torch import load_file, save_file
from tiny_errors import refused

from data_specs.calibration import CalibrationFileError, draft_contents, write_calibration
from data_specs.manifest import read_json, write_json
from data_specs.sps import SpsError
from data_specs.study import RESULT, StudyError
from pipeline.report import markdown
from pipeline.store.artifacts import Store
from stages.study import run
from stages.study.run import run_study


@pytest.fixture(scope="module")
def draft_folder(target_folder, tmp_path_factory):
    return tiny_study.draft_in(tmp_path_factory.mktemp("drafts") / "tiny-draft", target_folder)


@pytest.fixture
def config(target_folder, tmp_path):
    return tiny_study.config_of(target_folder, tmp_path)


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
    assert "4 of 7 points" in capsys.readouterr().out
    made.verify()
    assert made.reference == "tiny-draft:v0" and made.manifest.counts["points"] == 6
    assert {name.split("/")[0] for name in made.manifest.files} == {
        "steps", "times", "pool.parquet", "study.json", "study.md", "report.html", "study_front_measured.png",
        "study_front_box.png", "study_load_measured.png", "study_load_box.png", "study_arrivals_box.png",
    }  # fmt: skip
    check_result(read_json(made.path / RESULT))

    monkeypatch.setattr(run.InProcessServer, "load", None)  # loading anything would fail
    assert run_study(config, store, draft_folder).path == made.path
    assert "tiny-draft:v0" in capsys.readouterr().out
    config.study.sla = [1.0]
    assert run_study(config, store, draft_folder).reference == "tiny-draft:v1"
    assert "tiny-draft:v0" in capsys.readouterr().out, "says whose measurements it copied"
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
    with refused(CalibrationFileError, draft_folder / "calibration.json"):
        config.study.calibrated = True
        run_study(config, store, draft_folder)
    config.study.calibrated = False
    silent = tiny_study.draft_in(tmp_path / "silent", target_folder, confidence_head=False)
    with refused(StudyError, "study.policies", "algorithm_1", "silent"):
        run_study(config, store, silent)
    config.study.in_chain = True  # a chain of some hours does not end with a refusal
    assert [arm.name for arm in run.make_plan(config, store, silent).arms] == ["plain", "fixed_1"]
    config.study.in_chain = False
    config.study.simulated_concurrencies = [1, 5]
    with refused(SpsError, "box", "points", 16, 20):
        run_study(config, store, draft_folder)
    config.study.simulated_concurrencies = [4]
    config.study.policies = ["fixed_9"]
    with refused(StudyError, "study.policies", "fixed_9", 3):
        run_study(config, store, draft_folder)


SURE = 0.9933071490757153  # sigmoid(5)
FLAT = 0.5012499973958399  # sigmoid(5 / 1000)


@pytest.fixture
def calibrated(target_folder, tmp_path):
    """A folder with a draft that is always as sure, and a calibration that is as extreme."""
    folder = tiny_study.draft_in(tmp_path / "tiny-draft", target_folder)
    weights = load_file(folder / "model.safetensors")
    weights["confidence_head.proj.weight"].mul_(1e-12)
    weights["confidence_head.proj.bias"].fill_(5.0)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    made = tiny_study.calibration_of(folder, target_folder, [1000.0] * 3)
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


def test_a_plan_measures_nothing(config, draft_folder, capsys) -> None:
    config.plan = True
    store = Store(config.artifacts)
    assert run_study(config, store, draft_folder) is None
    assert store.list() == [] and "6 points" in capsys.readouterr().out
