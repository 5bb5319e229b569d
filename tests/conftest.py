"""Fixtures, and variables that must be set before torch is imported: spinning OpenMP threads are 30 times slower."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

sys.path.insert(0, str(Path(__file__).parent))  # so that every test can `import tiny`

import pytest  # noqa: E402


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ordinary model folder with a tiny random Qwen3, its tokenizer and chat template."""
    import tiny

    return tiny.save_target(tmp_path_factory.mktemp("target"))


_status = {"code": 1}


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remember the exit status of the tests themselves."""
    _status["code"] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End with the status of the tests. Exit hooks of the libraries under test (W&B's service, torch's elastic agent)
    once turned 983 passed tests into exit code 130.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_status["code"])
