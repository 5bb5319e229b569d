import pytest
from tiny_errors import refused
from tiny_export_store import DAMAGE, configured, edit
from tiny_exports import make

from data_specs.errors import UserError
from pipeline.drafts.folders import checkpoint
from pipeline.store.artifacts import Store
from stages.export import run
from stages.export.adopt import run_import


@pytest.mark.parametrize("fields,tensors,named", DAMAGE)
def test_a_damaged_draft_is_refused_by_name(tmp_path, fields: dict, tensors: dict, named: list) -> None:
    folder, store = tmp_path / "draft", Store(tmp_path / "artifacts")
    checkpoint.save(make("dspark"), folder)
    edit(folder, fields, tensors)
    config = configured(store, "vllm", "hub")
    with refused(UserError, *named):
        run.run_export(config, store, folder)
    with refused(UserError, *named):
        run_import(config, store, folder)
    assert not store.list()
