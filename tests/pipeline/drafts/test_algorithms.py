"""Names of algorithms and families, which the config reads before torch is loaded."""

import subprocess
import sys

import pytest

from pipeline.drafts import registry
from pipeline.drafts.algorithms import ALGORITHMS, FAMILIES


@pytest.mark.parametrize(
    ("name", "fixed"),
    [
        ("dspark", {}),
        ("dflash", {"markov_rank": 0, "confidence_head": False}),
        ("eagle3", {"markov_rank": 0, "confidence_head": False, "depth": 1, "sample_from_anchor": True}),
        (
            "mtp",
            {
                "markov_rank": 0,
                "confidence_head": False,
                "depth": 1,
                "sample_from_anchor": True,
                "num_taps": 0,
            },
        ),
    ],
)
def test_keys_that_an_algorithm_fixes(name: str, fixed: dict) -> None:
    assert ALGORITHMS[name].fixed == fixed


def test_the_registry_has_every_name() -> None:
    assert list(registry.ALGORITHMS) == list(ALGORITHMS) == ["dspark", "dflash", "eagle3", "mtp"]
    assert list(registry.FAMILIES) == list(FAMILIES) == ["qwen3", "gemma4", "llama"]
    assert registry.MODEL_TYPES == {"qwen3": "qwen3", "gemma4_text": "gemma4", "llama": "llama"}


def test_names_are_known_without_torch() -> None:
    code = "import sys, pipeline.drafts.algorithms; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
