from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from tiny_states import assert_equal, make, sample_of, spec_of

from pipeline.states.index import write_index
from pipeline.states.reader import CacheReader
from pipeline.states.samples import Sample
from pipeline.states.segments import segment_is_done
from pipeline.states.writer import write_segment
from pipeline.store.artifacts import Artifact


@pytest.mark.parametrize("codec", ["none", "zstd", "blosc"])
def test_every_bit_pattern_survives(tmp_path: Path, codec: str) -> None:
    """Pitfall 22: all 65,536 values of bf16, NaNs with their payloads and -0 among them."""
    spec = spec_of(codec=codec, taps=[0], hidden_size=64, chunk_tokens=128, shard_tokens=512)
    every = torch.arange(65536).int().to(torch.uint16).view(torch.bfloat16).reshape(1024, 64)
    base = sample_of(1024, spec_of())
    sample = Sample(base.input_ids, base.loss_mask, every, every.flip(0), "train", "bits")
    reader = CacheReader(make(tmp_path, spec, [sample]).path)
    assert_equal(reader.read(0), sample)
    assert torch.isnan(reader.read(0).hidden).sum() == 254


def test_every_kind_of_fp32_survives(tmp_path: Path) -> None:
    spec = spec_of(dtype="float32")
    patterns = [
        0x80000000,
        0x7FC00001,
        0x7F800001,
        0xFFFFFFFF,
        0x7F800000,
        1,
        0,
        0x3F800000,
    ]  # -0, NaNs, inf, 2^-149
    states = torch.from_numpy(np.array(patterns, np.uint32).view(np.float32))[:, None].repeat(1, 6)
    sample = sample_of(8, spec, hidden=states, last_hidden=states[:, :3])
    reader = CacheReader(make(tmp_path, spec, [sample]).path)
    assert_equal(reader.read(0), sample)


def test_a_chunk_of_zeros_is_stored_and_comes_back(tmp_path: Path) -> None:
    """Pitfall 19: an absent chunk would be zeros too, so none is left out."""
    spec = spec_of()
    sample = sample_of(16, spec, hidden=torch.zeros(16, 6, dtype=torch.bfloat16))
    artifact = make(tmp_path, spec, [sample])
    files = [name for name in artifact.manifest.files if name.startswith("segments/00000/hidden/c/")]
    assert files == ["segments/00000/hidden/c/0/0", "segments/00000/hidden/c/1/0"]
    assert_equal(CacheReader(artifact.path).read(0), sample)


def test_segments_are_ordinary_zarr_that_says_what_it_holds(made: Artifact) -> None:
    group = zarr.open_group(made.path / "segments/00000", mode="r")
    assert group["hidden"].dtype == np.uint16
    assert dict(group["hidden"].attrs) == {"dtype": "bfloat16"}
    assert group["offsets"][:].tolist() == [0, 5, 12]
    assert group["hidden"].metadata.dimension_names == ("token", "feature")


def test_a_writer_killed_before_the_rename_leaves_no_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pitfall 20; what is left of it is not part of the artifact."""
    spec = spec_of()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.states.writer.publish_folder", killed)
    with pytest.raises(KeyboardInterrupt):
        write_segment(tmp_path, 0, [sample_of(9, spec)], spec)
    monkeypatch.undo()
    assert not segment_is_done(tmp_path, 0)
    write_segment(tmp_path, 0, [sample_of(9, spec)], spec)
    (tmp_path / "segments/.00001.elsewhere.7.partial").mkdir()
    write_index(tmp_path, spec, 1)
    assert [path.name for path in (tmp_path / "segments").iterdir()] == ["00000"]


def test_a_second_writer_of_a_segment_changes_nothing(tmp_path: Path) -> None:
    """Pitfall 18."""
    spec = spec_of()
    write_segment(tmp_path, 0, [sample_of(9, spec)], spec)
    before = (tmp_path / "segments/00000/segment.json").read_text()
    write_segment(tmp_path, 0, [sample_of(9, spec)], spec)
    assert (tmp_path / "segments/00000/segment.json").read_text() == before
    assert [path.name for path in (tmp_path / "segments").iterdir()] == ["00000"]
