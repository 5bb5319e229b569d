"""What mlx-dspark is given: block drafts in their native layout, served unquantised."""

from pathlib import Path

import pytest
from tiny_exports import make, saved

from stages.export.mlx import plan, serve
from stages.export.source import facts_of


@pytest.mark.parametrize(
    ("name", "architecture", "heads"),
    [("dspark", "Qwen3DSparkModel", {"markov_head"}), ("dflash_fill_in", "DFlashDraftModel", set())],
)
def test_it_is_given_no_tensor_that_it_does_not_know(
    tmp_path: Path, name: str, architecture: str, heads: set[str]
) -> None:
    """It checks names strictly: nothing of the target's, and heads where there are any."""
    layout = plan(saved(name, tmp_path)[1])
    assert layout.config["architectures"] == [architecture]
    tops = {tensor.partition(".")[0] for tensor in layout.tensors}
    assert tops - {"confidence_head"} == {"fc", "hidden_norm", "norm", "layers"} | heads


@pytest.mark.parametrize(("name", "kind"), [("dspark", "dspark"), ("dflash_fill_in", "dflash")])
def test_the_command_does_not_quantise_the_draft(name: str, kind: str) -> None:
    assert serve(facts_of(make(name).config), "org/target", "there") == [
        f"mlx-dspark serve --mode {kind} --model org/target --drafter there --drafter-bits 0"
    ]
