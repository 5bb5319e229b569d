import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import tiny_cache

from pipeline.store.artifacts import Artifact, Store

LENGTHS = [12, 30, 9, 20, 17, 25, 14]  # tokens a sample; the last two are held out


class Cached(NamedTuple):
    """An artifacts folder of one's own with the tiny cache in it."""

    store: Store
    cache: Artifact
    target: Path

    def config(self, algorithm: str = "dspark", **changes: object):
        """A run on that cache; ``changes`` are those of ``train``."""
        return tiny_cache.train_config(self.target, self.store.root, algorithm, **changes)


@pytest.fixture(scope="session")
def made_cache(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny_cache.fork_server()  # imports while the first tests run
    root = tmp_path_factory.mktemp("cache")
    tiny_cache.make(Store(root), target_folder, LENGTHS, heldout=2)
    return root


@pytest.fixture
def cached(made_cache: Path, target_folder: Path, tmp_path: Path) -> Cached:
    root = tmp_path / "artifacts"
    shutil.copytree(made_cache, root)
    store = Store(root)
    return Cached(store, store.resolve("cache", "tiny_chat"), target_folder)
