import huggingface_hub
import pytest
from tiny_errors import refused
from tiny_export_store import calibrate, configured, evaluate, store_with_a_draft

from data_specs.calibration import (
    CalibrationFileError,
)
from data_specs.errors import UserError
from stages.export import lineage, run
from stages.export.adopt import run_import


@pytest.mark.parametrize(
    "place,named",
    [
        ("{root}/artifacts/draft", "{root}"),
        ("/models/elsewhere/shard-1", "/models/elsewhere"),
        ("/caches/draftline/targets/t", "/caches/draftline"),
        ("/hub/models--a", "/hub"),
    ],
)
def test_a_path_that_would_leave_is_named(tmp_path, monkeypatch, place: str, named: str) -> None:
    """The store, the lineage's own target, and where located targets lie."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", "/hub")
    store, draft = store_with_a_draft(tmp_path, "/models/elsewhere")
    calibrate(draft.path, data=place.format(root=tmp_path))
    with refused(UserError, "calibration.json", named.format(root=tmp_path)):
        run.run_export(configured(store, "vllm"), store, draft)
    assert not store.list("export")


def test_a_name_that_only_looks_like_a_path_may_leave(tmp_path) -> None:
    (tmp_path / "README.md").write_text("org/data, /dataset, model.data")
    lineage.check_no_paths(tmp_path, [b"/data"])
    (tmp_path / "README.md").write_text('"/data/x"')
    with refused(UserError, "README.md", "/data"):
        lineage.check_no_paths(tmp_path, [b"/data"])


@pytest.mark.parametrize(
    "path,shown",
    [
        ("org/prompts", "org/prompts"),
        ("gsm8k", "gsm8k"),
        ("prompts/mine.jsonl", "mine.jsonl"),
        ("secret/customer/prompts", "prompts"),
        ("/data/customer", "customer"),
        ("~/prompts", "prompts"),
    ],
)
def test_of_a_local_source_the_name_is_told(path: str, shown: str) -> None:
    assert lineage.public({"path": path}) == shown


def test_another_drafts_calibration_is_refused(tmp_path, target_folder) -> None:
    """Stamped anew it would scale the confidences of a draft that it was never fitted on."""
    store, draft = store_with_a_draft(tmp_path, target_folder)
    for changes, named in (
        ({"draft": "0" * 64}, ["draft", "0" * 12]),
        ({"temperatures": [1.0]}, ["temperatures", 7]),
    ):
        calibrate(draft.path, **changes)
        with refused(CalibrationFileError, "calibration.json", *named):
            run.run_export(configured(store, "vllm"), store, draft)
        with refused(CalibrationFileError, "calibration.json", *named):
            run_import(configured(store, "vllm"), store, draft.path)
    assert not store.list("export") and len(store.list("draft")) == 1


def test_an_evaluation_of_another_draft_is_refused(tmp_path, target_folder) -> None:
    store, draft = store_with_a_draft(tmp_path, target_folder)
    evaluate(store, "another draft")
    config = configured(store, "hub")
    config.evaluation = "tiny_dspark"
    with refused(UserError, "evaluation=tiny_dspark", "tiny_dspark:v0"):
        run.run_export(config, store, draft)
    assert not store.list("export")
