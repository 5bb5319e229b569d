import pytest
from tiny_errors import refused
from tiny_export_store import SAYS, configured, store_with_a_draft
from tiny_exports import saved

from data_specs.errors import UserError
from stages.export import llama_cpp, run


def test_gguf_files_come_from_the_converter(tmp_path, target_folder) -> None:
    store, draft = store_with_a_draft(tmp_path, target_folder)
    (tmp_path / "convert.py").write_text(SAYS)
    config = configured(store, "llama_cpp", converter=str(tmp_path / "convert.py"), outtype="f32")
    artifact = run.run_export(config, store, draft)[0]
    said = (artifact.path / "draft.gguf").read_text().split()
    assert said[2:] == [
        "--target-model-dir", target_folder.name, "--model-name", "tiny_dspark", "--outtype", "f32", "--outfile",
        ".draft.gguf.tmp",
    ]  # fmt: skip
    assert f"GGUF {target_folder.name} --outtype f32" in (artifact.path / "target.gguf").read_text()
    assert artifact.manifest.config["gguf"] == "f32"


def test_the_converter_may_be_a_checkout(tmp_path, target_folder, capsys) -> None:
    """Files that are converted are served as they are."""
    store, draft = store_with_a_draft(tmp_path, target_folder)
    (tmp_path / "llama.cpp").mkdir()
    (tmp_path / "llama.cpp" / "convert_hf_to_gguf.py").write_text(SAYS)
    artifact = run.run_export(
        configured(store, "llama_cpp", converter=str(tmp_path / "llama.cpp")), store, draft
    )[0]
    assert {"draft.gguf", "target.gguf"} <= artifact.manifest.files.keys()
    printed = capsys.readouterr().out
    assert "llama-server -m" in printed and "convert_hf_to_gguf.py" not in printed


@pytest.mark.parametrize(
    "changes,named",
    [
        ({"converter": "none.py"}, ["export.converter=none.py", "convert_hf_to_gguf.py"]),
        ({"converter": "."}, ["export.converter=convert_hf_to_gguf.py"]),
        ({"converter": "fail.py"}, ["export.converter=fail.py", "draft.gguf", 1, "no such tokenizer"]),
        ({"converter": "convert.py", "python": "/no/python"}, ["export.python=/no/python", "No such file"]),
    ],
)
def test_a_converter_that_fails_says_why(
    tmp_path, target_folder, monkeypatch, changes: dict, named: list
) -> None:
    store, draft = store_with_a_draft(tmp_path, target_folder)
    (tmp_path / "convert.py").write_text(SAYS)
    (tmp_path / "fail.py").write_text("import sys; sys.exit('line one\\nno such tokenizer')")
    monkeypatch.chdir(tmp_path)
    with refused(UserError, *named):
        run.run_export(configured(store, "llama_cpp", **changes), store, draft)
    assert not store.list("export")


def test_eagle3_counts_hidden_states(tmp_path) -> None:
    config = llama_cpp.plan(saved("eagle3_llama", tmp_path)[1]).config
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3] and "eagle_config" not in config
