from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from tiny_errors import refused

from data_specs.target_cache import CacheError, CacheSpec, arrays
from pipeline.states.samples import Sample
from pipeline.states.shards import check_order, read_rows
from pipeline.states.writer import write_segment

SPEC = CacheSpec(taps=[0, 2], hidden_size=3, vocab_size=1000, chunk_tokens=4, shard_tokens=16)
TOKENS = 45  # two whole shards, and one of 13 rows with a padded chunk


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    states = torch.arange(TOKENS * 9).reshape(TOKENS, 9).to(torch.bfloat16)
    ids = torch.arange(TOKENS) * 7
    write_segment(tmp_path, 0, [Sample(ids, ids % 2 == 0, states[:, :6], states[:, 6:], "train", "k")], SPEC)
    return tmp_path / "segments/00000"


@pytest.mark.parametrize("name", list(arrays(SPEC)))
@pytest.mark.parametrize(
    ("start", "stop"), [(0, 45), (0, 1), (3, 5), (15, 17), (16, 32), (10, 40), (31, 45), (44, 45)]
)
def test_rows_are_those_that_zarr_reads(segment: Path, name: str, start: int, stop: int) -> None:
    rows = read_rows(segment / name, arrays(SPEC)[name], SPEC, TOKENS, start, stop)
    expected = zarr.open_array(segment / name, mode="r")[start:stop]
    assert rows.dtype == expected.dtype
    assert np.array_equal(rows, expected)


def test_a_missing_or_shortened_file_is_named(segment: Path) -> None:
    """Pitfall 19."""
    array, path = arrays(SPEC)["hidden"], segment / "hidden/c/2/0"
    data = path.read_bytes()
    path.write_bytes(data[: 12 * 12])
    with refused(CacheError, path, 78, 72):
        read_rows(segment / "hidden", array, SPEC, TOKENS, 32, 45)
    path.unlink()
    with refused(CacheError, path):
        read_rows(segment / "hidden", array, SPEC, TOKENS, 0, 45)


def test_a_shard_in_another_order_is_refused(segment: Path) -> None:
    array, path = arrays(SPEC)["hidden"], segment / "hidden/c/1/0"
    check_order(segment / "hidden", array, SPEC, TOKENS)
    data = bytearray(path.read_bytes())
    first, second = slice(-68, -52), slice(-52, -36)  # the first two of four entries before the checksum
    data[first], data[second] = data[second], data[first]
    path.write_bytes(data)
    with refused(CacheError, path):
        check_order(segment / "hidden", array, SPEC, TOKENS)
