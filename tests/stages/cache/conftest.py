import multiprocessing
from pathlib import Path

import pytest
from tiny_capture import config_of, run

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
    return Target.load(config_of(target_folder, target_folder).target)


@pytest.fixture(scope="module")
def made(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return run(target_folder, tmp_path_factory.mktemp("made"))
