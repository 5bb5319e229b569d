from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
from tiny_answers import TEXTS, config
from tiny_errors import refused

from data_specs import files
from pipeline.config import (
    ConfigError,
)
from pipeline.prompts.chat import render_prompt
from pipeline.store.artifacts import Store
from stages.cache import answers, answers_plan
from stages.cache.answers import run_answers
from stages.cache.answers_job import prepare


def test_a_plan_does_nothing(
    tmp_path: Path, target_folder: Path, store: Store, capsys: pytest.CaptureFixture
):
    rows = [*({"prompt": text} for text in TEXTS), {"messages": []}, {"turns": ["x", "y"]}]
    assert run_answers(config(tmp_path, target_folder, rows, plan=True), store) is None
    assert not store.root.exists()
    out = capsys.readouterr().out
    assert "rejected, empty" in out and "Plan: answers" in out
    lines = dict(answers_plan.plan_lines(prepare(config(tmp_path, target_folder, rows))))
    assert lines["prompts"] == "11" and lines["turns"] == "12"
    assert lines["answer tokens"] == "at most 144"
    assert "at most" in lines["bytes"] and "very roughly" in lines["time"]


def test_the_plan_bounds_the_cache_and_names_the_free_disk(
    tmp_path: Path, target_folder: Path, store: Store, capsys: pytest.CaptureFixture
):
    cfg = config(tmp_path, target_folder, [{"prompt": "a"}], plan=True, data={"heldout": 0.0})
    run_answers(cfg, store)
    out = capsys.readouterr().out
    assert "target cache at most" in out and "free disk" in out and "capture time" in out
    job = prepare(cfg)
    prompt = len(render_prompt(tiny.tokenizer(), [{"role": "user", "content": "a"}], None))
    assert answers_plan.forecast_cache(job).most_tokens == prompt + 12
    spec = answers_plan.spec_of(cfg, answers_plan.read_config(target_folder, cfg.target))
    token = answers_plan.cache_bytes([128], spec, 65536) / 128
    assert answers_plan.forecast_cache(job).most_bytes == 128 * token  # one chunk
    assert answers_plan.forecast_cache(job).least_bytes == (prompt + 1) * token


@pytest.mark.parametrize("plan", [True, False])
def test_a_cache_that_cannot_fit_is_refused_before_the_answers(
    tmp_path: Path, target_folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch, plan: bool
):
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    monkeypatch.setattr(answers, "_engine", lambda job: pytest.fail("answered"))
    with refused(ConfigError, f"artifacts={store.root}", "1.0 kB", 1000):
        run_answers(config(tmp_path, target_folder, plan=plan), store)
    assert not store.root.exists()


def test_a_cache_that_may_not_fit_is_a_warning(
    tmp_path: Path,
    target_folder: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
):
    cfg = config(tmp_path, target_folder, plan=True)
    bounds = answers_plan.forecast_cache(prepare(cfg))
    free = int(bounds.least_bytes + bounds.most_bytes) // 2
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert run_answers(cfg, store) is None
    assert "warning: the target cache may take up to" in capsys.readouterr().out
