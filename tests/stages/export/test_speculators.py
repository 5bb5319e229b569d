import sys

import torch
from tiny_errors import refused
from tiny_export_store import LIBRARY, configured, store_with_a_draft

from data_specs.manifest import read_json
from pipeline.config import (
    ConfigError,
)
from stages.export import run, speculators


def test_the_library_is_asked_where_it_is_installed(tmp_path, target_folder, monkeypatch) -> None:
    """A stand-in with the library's interface (the real one: tests/engines); a disagreement is named."""
    package = tmp_path / "site" / "speculators"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBRARY)
    store, draft = store_with_a_draft(tmp_path, target_folder)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    artifact = run.run_export(configured(store, "speculators"), store, draft)[0]
    assert read_json(artifact.path / "config.json")["seen_by"] == "the library"
    layout = run.plan("speculators", run.make_job(configured(store, "speculators"), store, draft))
    layout.tensors["more.weight"] = torch.ones(1)
    with refused(ConfigError, "export=speculators", ["more.weight"]):
        speculators.through_library(layout)
    monkeypatch.delitem(sys.modules, "speculators")
