"""What a target cache will need: rows that render, a server that answers, positions."""

import json
from pathlib import Path

import pytest
import tiny
from tiny_answers import TEXTS, config

from pipeline.config import OpenAIConfig, StageConfig
from pipeline.preflight import Ahead
from stages.cache import checks as preflight
from stages.cache.checks import checks


def found_of(cfg) -> dict[str, tuple[str, str]]:
    return {check.name: (check.state, check.found) for check in checks(Ahead(cfg))}


def test_a_sample_of_the_rows_is_rendered(tmp_path: Path, target_folder: Path) -> None:
    rows = [{"prompt": text, "response": "b"} for text in TEXTS] + [{"prompt": "x"}, {"text": "y"}]
    found = found_of(config(tmp_path, target_folder, rows, answers={"source": "given"}))
    assert {state for state, _ in found.values()} == {"ok"}
    assert found["prompts"][1].endswith("; 1 rejected, no_answer; 1 rejected, no_known_fields")
    assert found["answers"][1] == "10 of 10 rendered; given"
    assert not (tmp_path / "artifacts").exists()


def test_rows_that_the_template_refuses_are_a_problem_only_where_none_is_left(tmp_path: Path) -> None:
    target = tiny.save_target(tmp_path / "target")
    (target / "chat_template.jinja").write_text(
        "{% if messages[0]['content'] != 'why' %}{{ raise_exception('no') }}{% endif %}" + tiny.TEMPLATE
    )
    found = found_of(config(tmp_path, target))
    assert found["answers"] == ("ok", "1 of 10 rendered; 9 rejected, refused_by_template; "
                                "by the target in this process")  # fmt: skip
    found = found_of(config(tmp_path, target, [{"prompt": "a"}, {"prompt": "b"}]))
    assert found["answers"][0] == "problem" and "2 rejected, refused_by_template" in found["answers"][1]


def test_a_source_is_read_on_only_where_its_first_rows_are_of_no_use(
    tmp_path: Path, target_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "ROWS", 4)
    cfg = config(tmp_path, target_folder, data={"heldout": 0.0})
    assert found_of(cfg)["prompts"][1].startswith("4 rows read: 4 train")
    cfg = config(
        tmp_path, target_folder, [{"x": n} for n in range(5)] + [{"prompt": "a"}], data={"heldout": 0.0}
    )
    assert found_of(cfg)["prompts"][1].startswith("6 rows read: 1 train")
    cfg = config(tmp_path, target_folder, [{"x": n} for n in range(5)])
    assert found_of(cfg)["prompts"][0] == "problem"


def test_a_server_that_is_not_there(tmp_path: Path, target_folder: Path) -> None:
    server = OpenAIConfig(base_urls=["http://127.0.0.1:9/v1"], backoff=0.0, timeout=1.0)
    found = found_of(config(tmp_path, target_folder, answers={"source": "openai", "openai": server}))
    assert found["answers"][0] == "problem" and "127.0.0.1:9" in found["answers"][1]


def test_a_target_that_cannot_be_read_does_not_hide_what_is_wrong_with_the_data(tmp_path: Path) -> None:
    found = found_of(config(tmp_path, tmp_path / "nowhere", [{"x": 1}]))
    states = {name: state for name, (state, _) in found.items()}
    assert states == {
        "target": "problem", "prompts": "problem", "where states are computed": "ok", "answers": "not checked",
    }  # fmt: skip


def test_positions_that_a_sample_may_exceed(tmp_path: Path, target_folder: Path) -> None:
    cfg = config(tmp_path, target_folder, answers={"max_new_tokens": 2048})
    state, said = found_of(cfg)["answers"]
    assert state == "problem" and "capture.max_length=2048" in said
    cfg.capture.max_length = 2048
    assert found_of(cfg)["answers"][0] == "ok"


def test_a_cache_that_is_named_is_looked_up(tmp_path: Path, target_folder: Path) -> None:
    cfg = config(tmp_path, target_folder, stage=StageConfig("all", ["cache", "train"]), cache="nowhere")
    cfg.artifacts = str(tmp_path / "artifacts")
    ((name, (state, said)),) = found_of(cfg).items()
    assert (name, state) == ("cache", "problem") and "cache=nowhere" in said


def test_control_tokens_are_rejected_here_as_there(tmp_path: Path, target_folder: Path) -> None:
    rows = [{"prompt": "a<|im_end|>"}]
    assert (
        json.dumps(found_of(config(tmp_path, target_folder, rows, data={"control_tokens": "reject"}))).count(
            "control_tokens"
        )
        == 1
    )
