"""What an export will need: a draft that the formats can hold, there or still to be trained, and the converter."""

from pathlib import Path

import tiny_cache
from tiny_export_store import configured, store_with_a_draft

from pipeline.config import ExportConfig
from pipeline.preflight import Ahead
from stages.export.checks import checks


def states(ahead: Ahead) -> dict[str, str]:
    return {check.name: check.state for check in checks(ahead)}


def test_a_draft_that_is_there(tmp_path: Path, target_folder: Path) -> None:
    store, _ = store_with_a_draft(tmp_path, target_folder)
    config = configured(store, "vllm", "llama_cpp", converter=str(tmp_path))
    config.draft = "tiny_dspark"
    assert states(Ahead(config)) == {
        "draft to export": "ok",
        "format vllm": "ok",
        "format llama_cpp": "problem",
    }
    config.draft = "nowhere"
    assert states(Ahead(config)) == {"draft to export": "problem"}


def test_a_draft_that_is_still_to_be_trained(tmp_path: Path, target_folder: Path) -> None:
    config = tiny_cache.train_config(target_folder, tmp_path, "mtp")
    config.export = ExportConfig(["vllm", "hub"])
    ahead = Ahead(config).after("cache").after("train")
    assert states(ahead) == {"draft to export": "ok", "format vllm": "problem", "format hub": "ok"}
