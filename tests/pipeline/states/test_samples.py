from pathlib import Path

import pytest
import torch
from tiny_errors import refused
from tiny_states import sample_of, spec_of

from data_specs.target_cache import CacheError
from pipeline.states.samples import check_finite, plan_segments
from pipeline.states.writer import write_segment


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([5, 7, 3, 9, 20, 1, 2], [[0, 1], [2, 3], [4], [5, 6]]),
        ([12, 12], [[0], [1]]),
        ([30, 1], [[0], [1]]),
    ],
)
def test_plan_of_segments(lengths: list[int], expected: list[list[int]]) -> None:
    assert plan_segments(lengths, 12) == expected


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden": torch.zeros(8, 6, dtype=torch.bfloat16)}, ["hidden", (9, 6), (8, 6)]),
        ({"last_hidden": torch.zeros(9, 6, dtype=torch.bfloat16)}, ["last_hidden", (9, 3), (9, 6)]),
        ({"loss_mask": torch.ones(10, dtype=torch.bool)}, ["loss_mask", (9,), (10,)]),
        ({"hidden": torch.zeros(9, 6)}, ["hidden", torch.bfloat16, torch.float32]),
        ({"split": "benchmark"}, ["split", "'benchmark'"]),
    ],
)
def test_samples_of_the_wrong_shape_are_named(tmp_path: Path, changes: dict, named: list) -> None:
    """Pitfall 15: fewer rows than tokens."""
    spec = spec_of()
    with refused(CacheError, "sample key0", *named):
        write_segment(tmp_path, 0, [sample_of(9, spec, **changes)], spec)
    assert list(tmp_path.iterdir()) == []


def test_states_that_are_not_finite_are_named() -> None:
    """Pitfall 15."""
    sample = sample_of(9, spec_of())
    check_finite(sample)
    sample.last_hidden[4, 1] = float("inf")
    with refused(CacheError, "sample key0", "last_hidden", 4, 9):
        check_finite(sample)
