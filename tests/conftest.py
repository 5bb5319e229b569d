"""Set before any import of torch: two busy processes with spinning OpenMP threads are 30 times slower."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

sys.path.insert(0, str(Path(__file__).parent))  # `import tiny` in every test, wherever it lies

import pytest  # noqa: E402


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ordinary model folder with a tiny random Qwen3, its tokenizer and chat template."""
    import tiny

    return tiny.save_target(tmp_path_factory.mktemp("target"))
