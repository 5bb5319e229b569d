from tiny_errors import refused
from tiny_export_store import TEMPERATURES, calibrate, configured, store_with_a_draft

from data_specs.calibration import (
    draft_contents,
    read_calibration,
)
from data_specs.manifest import read_json
from pipeline import __main__ as entry
from pipeline.config import (
    ConfigError,
    StageConfig,
    TrainConfig,
)
from pipeline.drafts.folders import checkpoint
from pipeline.store.artifacts import Store
from stages.export import run
from stages.export.adopt import run_import


def test_draft_may_be_an_export_and_import_gives_the_draft_back(tmp_path, target_folder) -> None:
    """export -> stage=import -> export: the same files; ``draft=`` takes the folder of an export as it is."""
    store, draft = store_with_a_draft(tmp_path, target_folder, "dflash")
    config = configured(store, "vllm")
    config.draft, config.train = "tiny_dflash", TrainConfig(steps=1)
    entry.run(config)
    first = store.resolve("export", "tiny_dflash_vllm")
    importing = configured(store, "vllm", name="brought_back")
    importing.stage, importing.draft = StageConfig("import", ["import"]), str(first.path)
    entry.run(importing)
    back = store.resolve("draft", "brought_back")
    back.verify()
    assert checkpoint.read_config(back.path).markov_rank == 0, "the head of zeros is off again"
    again = configured(store, "vllm", name="again")
    again.draft = "brought_back"
    entry.run(again)
    direct = configured(store, "vllm", name="direct")
    direct.draft = str(first.path)
    entry.run(direct)
    for name in ("again", "direct"):
        other = store.resolve("export", name)
        for file in ("config.json", "model.safetensors"):
            assert other.manifest.files[file] == first.manifest.files[file], (name, file)
    importing.export.name = None
    entry.run(importing)
    assert len(store.list("draft")) == 2, "found again"


def test_an_import_keeps_calibration_and_lineage(tmp_path, target_folder) -> None:
    """On a machine that never saw the training: an export of the import still knows target and data."""
    store, draft = store_with_a_draft(tmp_path, target_folder)
    calibrate(draft.path)
    first = run.run_export(configured(store, "hub", target="org/target"), store, draft)[0]
    other = Store(tmp_path / "elsewhere")
    for _ in range(2):  # found again
        back = run_import(configured(other, "hub"), other, first.path)
    assert back is not None and len(other.list("draft")) == 1
    back.verify()
    assert read_calibration(back.path, draft_contents(back.path), 7).temperatures == TEMPERATURES
    again = run.run_export(configured(other, "hub"), other, back)[0]
    said, before = (read_json(one.path / "provenance.json") for one in (again, first))
    assert said["draft"] == {"reference": back.reference, "fingerprint": back.manifest.fingerprint}
    assert {name: said[name] for name in ("ancestors", "target", "training")} == {
        name: before[name] for name in ("ancestors", "target", "training")
    }
    assert said["target"]["hub_id"] == "org/target" and said["training"]["sources"][1] == "org/prompts at abc"
    card = (again.path / "README.md").read_text()
    for line in ("base_model: org/target", "| source | prompts.jsonl |", "| steps | 30 |", "Fitted on 12"):
        assert line in card, line
    assert "calibration.json" in back.manifest.files


def test_import_wants_a_folder(tmp_path) -> None:
    config = configured(Store(tmp_path), "vllm")
    config.stage, config.draft = StageConfig("import", ["import"]), "nowhere"
    with refused(ConfigError, "draft=nowhere"):
        entry.run(config)
