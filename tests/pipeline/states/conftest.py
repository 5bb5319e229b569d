import shutil
from pathlib import Path

import pytest
from tiny_states import LENGTHS, make, sample_of, spec_of

from pipeline.store.artifacts import Artifact


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    spec = spec_of()
    samples = [sample_of(length, spec, seed) for seed, length in enumerate(LENGTHS)]
    return make(tmp_path_factory.mktemp("made"), spec, samples)


@pytest.fixture
def cache(made: Artifact, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(made.path, tmp_path / "v0"))
