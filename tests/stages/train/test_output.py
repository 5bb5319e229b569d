"""Pitfall 25: what must not be trained has the target's bits in every draft that is written."""

from pathlib import Path

import pytest
import torch
from tiny_errors import refused

from pipeline.target.tensors import load_tensors
from stages.train import plan
from stages.train.output import check_frozen, same_bits, save_draft


def test_the_frozen_rows_of_a_reduced_vocabulary_are_the_targets(cached, tmp_path: Path) -> None:
    setup = plan.prepare(cached.config("eagle3"), cached.cache)
    save_draft(setup.draft, tmp_path / "draft", torch.float32)
    check_frozen(tmp_path / "draft", setup.tensors)


@pytest.mark.parametrize("name", ["embed_tokens", "lm_head"])
def test_a_frozen_tensor_that_was_trained_is_named(cached, tmp_path: Path, name: str) -> None:
    config = cached.config()
    draft = plan.prepare(config, cached.cache).draft
    with torch.no_grad():
        getattr(draft, name).weight[5, 5] += 1e-6
    save_draft(draft, tmp_path / "draft", torch.float32)
    target = load_tensors(config.target)  # the draft shares memory with those that it was made from
    with refused(RuntimeError, tmp_path / "draft/model.safetensors", f"{name}.weight"):
        check_frozen(tmp_path / "draft", target)


def test_a_draft_written_again_replaces_the_old_one(cached, tmp_path: Path) -> None:
    draft = plan.prepare(cached.config(), cached.cache).draft
    for content in ("old", "half"):  # the second: of a process that was killed while it wrote
        folder = tmp_path / "best" / ("draft" if content == "old" else ".partial-draft")
        folder.mkdir(parents=True)
        (folder / "left").write_text(content)
    save_draft(draft, tmp_path / "best/draft", torch.float32)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["draft"]
    assert sorted(path.name for path in (tmp_path / "best/draft").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ([0.0, 1.0], [0.0, 1.0], True),
        ([float("nan")], [float("nan")], True),
        ([0.0], [-0.0], False),
        ([1.0], [1.0 + 2**-23], False),
        ([1.0], [1.0, 1.0], False),
    ],
)
def test_same_bits(one: list[float], other: list[float], equal: bool) -> None:
    assert same_bits(torch.tensor(one), torch.tensor(other)) == equal
    assert not same_bits(torch.tensor(one), torch.tensor(one, dtype=torch.float64))
