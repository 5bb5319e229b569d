import multiprocessing
import shutil
from pathlib import Path

import pytest
import tiny
import tiny_capture
import tiny_capture_vllm
from safetensors.torch import save_file
from tiny_capture_vllm import LENGTHS, TAPS

from pipeline.states.reader import CacheReader
from pipeline.store.artifacts import Artifact, Store
from pipeline.target.model import Target


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "artifacts")


@pytest.fixture(scope="module")
def processes():
    """Processes forked from a server that has done the heavy imports: a start takes a tenth of a second."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["transformers.models.qwen3.modeling_qwen3", "stages.cache.answers", "stages.cache.source_hf"]
    )
    return context


@pytest.fixture(scope="module")
def target(target_folder: Path) -> Target:
    return Target.load(tiny_capture.config_of(target_folder, target_folder).target)


@pytest.fixture(scope="module")
def made(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return tiny_capture.run(target_folder, tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def in_process(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return tiny_capture_vllm.captured(
        tiny_capture_vllm.config_of(target_folder, tmp_path_factory.mktemp("hf"))
    )


@pytest.fixture(scope="module")
def table(in_process: Artifact, target_folder: Path) -> Path:
    """Ids -> states as vLLM gives them: the taps, of which the last layer's is the state before the final norm."""
    target, found = Target.load(tiny.located(target_folder), TAPS), {}
    reader = CacheReader(in_process.path)
    for i in range(len(LENGTHS)):
        sample = reader.read(i)
        name = str(sample.input_ids.tolist())
        found[name] = sample.hidden.view(-1, 3, 32)[:, [1, 2, 0]].contiguous()
        found[f"{name} next"] = target.logits(sample.last_hidden[-1]).argmax()[None]
    path = in_process.path.parent / "table.safetensors"
    save_file(found, path)
    return path


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package vllm for the interpreter that runs the tests."""
    package = tmp_path / "packages" / "vllm"
    package.mkdir(parents=True)
    shutil.copy(Path(__file__).parents[2] / "fake_vllm.py", package / "__init__.py")
    (package / "_version.py").write_text("__version__ = '7.8.9'\n")
    (package / "platforms.py").write_text(
        "class current_platform:\n    is_cpu = staticmethod(lambda: True)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
