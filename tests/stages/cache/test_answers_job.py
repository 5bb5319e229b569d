from pathlib import Path

import pytest
import tiny
from tiny_answers import Scripted, config
from tiny_errors import refused
from tiny_templates import SWITCHED, folder_with

from pipeline.config import (
    ConfigError,
    OpenAIConfig,
)
from pipeline.store.artifacts import Store
from stages.cache import answers
from stages.cache.answers import run_answers
from stages.cache.answers_job import prepare


@pytest.mark.parametrize(
    "changes",
    [
        {"answers": {"max_new_tokens": 13}},
        {"answers": {"temperature": 1.0}},
        {"answers": {"chunk_prompts": 5}},
        {"target": {"thinking": False}},
        {"target": {"template_kwargs": {"style": "terse"}}},
        {"seed": 1},
        {"data": {"heldout": 0.9}},
        {"rows": [{"prompt": "other"}]},
    ],
)
def test_what_changes_answers_changes_the_fingerprint(tmp_path: Path, target_folder: Path, changes: dict):
    """Pitfalls 4 and 13."""
    folder = folder_with(SWITCHED, tmp_path / "target", target_folder)
    before = prepare(config(tmp_path, folder)).fingerprint
    assert prepare(config(tmp_path, folder, **changes)).fingerprint != before


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"thinking": True}, "target.thinking=True"),
        ({"template_kwargs": {"a": 1}}, "target.template_kwargs.a"),
    ],
)
def test_a_setting_that_the_template_does_not_read_is_refused(
    tmp_path: Path, target_folder: Path, settings: dict, key: str
):
    with pytest.raises(ConfigError, match=f"^{key}: "):
        prepare(config(tmp_path, target_folder, target=settings))


def test_what_only_changes_the_computing_does_not(tmp_path: Path, target_folder: Path):
    before = prepare(config(tmp_path, target_folder)).fingerprint
    changed = config(tmp_path, target_folder, answers={"batch_size": 1}, ranks=3, plan=True)
    assert prepare(changed).fingerprint == before


def test_the_batch_size_counts_where_the_target_samples(tmp_path: Path, target_folder: Path):
    """Pitfall 13: the draws of a batch come from one generator."""
    made = [
        prepare(config(tmp_path, target_folder, answers={"temperature": 1.0, "batch_size": size})).fingerprint
        for size in (1, 2)
    ]
    assert made[0] != made[1]


def test_the_target_itself_is_part_of_the_fingerprint(tmp_path: Path, target_folder: Path):
    other = tiny.save_target(tmp_path / "other", seed=1)
    job = prepare(config(tmp_path, target_folder))
    assert prepare(config(tmp_path, other)).fingerprint != job.fingerprint


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"presence_penalty": 0.5}, "answers.presence_penalty"),
    ],
)
def test_a_config_that_cannot_run_is_named(
    tmp_path: Path, target_folder: Path, store: Store, fields, message
):
    with pytest.raises(ConfigError, match=message):
        run_answers(config(tmp_path, target_folder, answers=fields), store)


def test_a_tokenizer_without_a_template_is_named(tmp_path: Path, store: Store):
    folder = tiny.save_target(tmp_path / "bare")
    (folder / "chat_template.jinja").unlink()
    with refused(ConfigError, f"target.path={folder}", "chat_template.jinja"):
        run_answers(config(tmp_path, folder), store)


def test_secrets_stay_out(tmp_path: Path, target_folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_KEY", "secret-123")
    monkeypatch.setattr(answers, "_engine", lambda job: Scripted())
    openai = OpenAIConfig(base_urls=["http://127.0.0.1:1/v1"], api_key_env="MY_KEY")
    artifact = run_answers(
        config(tmp_path, target_folder, answers={"source": "openai", "openai": openai}), store
    )
    for path in artifact.path.iterdir():
        assert b"secret-123" not in path.read_bytes()
    assert artifact.manifest.config["answers"]["openai"]["api_key_env"] == "MY_KEY"
