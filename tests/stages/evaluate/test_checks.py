"""What an evaluation will need: its draft, its benchmarks, held-out prompts."""

import pytest
import tiny_evaluation

from pipeline.config import DataConfig, SourceConfig
from pipeline.preflight import Ahead
from pipeline.store.artifacts import Store
from stages.evaluate import run
from stages.evaluate.checks import checks


@pytest.fixture(scope="module")
def draft_folder(target_folder, tmp_path_factory):
    return tiny_evaluation.draft_in(tmp_path_factory.mktemp("drafts") / "tiny-draft", target_folder)


@pytest.fixture
def config(target_folder, tmp_path, draft_folder):
    made = tiny_evaluation.config_of(target_folder, tmp_path)
    made.draft = str(draft_folder)
    return made


def states(config) -> dict[str, str]:
    return {check.name.split()[0]: check.state for check in checks(Ahead(config))}


def test_a_draft_that_fits_and_benchmarks_that_are_there(config) -> None:
    assert set(states(config).values()) == {"ok"}
    config.draft = "nowhere"
    assert states(config)["draft"] == "problem" and states(config)["calibration"] == "not checked"


def test_a_benchmark_that_cannot_be_read(config) -> None:
    config.evaluate.benchmarks = ["gsm8k", "math500"]
    config.evaluate.files = {"gsm8k": "/nowhere.jsonl"}
    found = {check.name: (check.state, check.found) for check in checks(Ahead(config))}
    assert found["benchmark gsm8k"][0] == "problem" and "/nowhere.jsonl" in found["benchmark gsm8k"][1]
    assert found["benchmark math500"][0] == "problem"


def test_a_calibration_without_a_held_out_prompt(config, tmp_path) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "a"}\n')
    config.evaluate.calibrate = True
    config.data = DataConfig("chat", [SourceConfig(str(tmp_path / "train.jsonl"))], heldout=1e-9)
    assert states(config)["calibration"] == "problem"
    config.data.heldout, config.evaluate.max_new_tokens = 1.0, 199
    assert states(config)["calibration"] == "problem"  # a round gives a token at least: too few rounds
    config.evaluate.calibrate = None
    assert states(config)["calibration"] == "ok"  # it goes without
    config.evaluate.calibrate, config.evaluate.max_new_tokens = True, 200
    assert states(config)["calibration"] == "ok"
    config.draft = None
    ahead = Ahead(config, frozenset({("draft", "tiny_dspark")}))
    config.drafter.name, config.drafter.confidence_head = "dspark", True
    assert {c.name: c.state for c in checks(ahead)}["draft to evaluate"] == "not checked"


def test_nothing_more_is_asked_of_an_evaluation_that_is_there(config, monkeypatch) -> None:
    job = run.make_job(config, Ahead(config).draft())
    store = Store(config.artifacts)
    store.commit(store.begin("evaluation", "tiny", 1, job.fingerprint, {}, {}), {})
    assert states(config) == {"draft": "ok", "evaluation": "ok"}
