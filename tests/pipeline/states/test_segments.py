from pathlib import Path

import pytest
from tiny_errors import refused
from tiny_states import flip, sample_of, spec_of

from data_specs.manifest import MANIFEST, ManifestError
from pipeline.states.reader import CacheReader
from pipeline.states.segments import drop_damaged, segment_is_done
from pipeline.states.writer import write_segment


def test_a_segment_is_done_when_it_is_whole_and_not_before(tmp_path: Path) -> None:
    """Pitfall 20: existence is not completion."""
    spec, path = spec_of(), tmp_path / "segments/00000/hidden/c/0/0"
    assert not segment_is_done(tmp_path, 0)
    write_segment(tmp_path, 0, [sample_of(9, spec)], spec)
    assert segment_is_done(tmp_path, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert not segment_is_done(tmp_path, 0)
    path.write_bytes(whole)
    (tmp_path / "segments/00000/segment.json").write_text("{")
    assert not segment_is_done(tmp_path, 0)


def test_damaged_segments_are_dropped(tmp_path: Path) -> None:
    spec = spec_of()
    for number in range(3):
        write_segment(tmp_path, number, [sample_of(9, spec, number)], spec)
    flip(tmp_path / "segments/00001/hidden/c/0/0")
    errors = drop_damaged(tmp_path, range(3))
    assert len(errors) == 1
    assert "segments/00001/hidden/c/0/0" in errors[0]
    assert [segment_is_done(tmp_path, number) for number in range(3)] == [True, False, True]


def test_a_whole_cache_passes(cache: Path) -> None:
    CacheReader(cache).verify()
    CacheReader(cache).verify(full=False)


def test_one_flipped_byte_in_any_file_is_found_and_named(cache: Path) -> None:
    files = [path for path in cache.rglob("*") if path.is_file()]
    assert len(files) > 30
    for path in files:
        before = path.read_bytes()
        flip(path, len(before) // 2)
        with pytest.raises(ManifestError) as error:
            CacheReader(cache).verify()
        # A flip in the manifest may show as a disagreement with the file that it then describes wrongly.
        assert path.relative_to(cache).as_posix() in str(error.value) or path.name == MANIFEST
        path.write_bytes(before)
    CacheReader(cache).verify()


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(
    "name", ["hidden/c/0/0", "last_hidden/c/0/0", "input_ids/c/0", "offsets/c/0", "hidden/zarr.json"]
)
def test_a_missing_file_is_named(cache: Path, name: str, full: bool) -> None:
    """Pitfall 19."""
    (cache / "segments/00001" / name).unlink()
    with refused(ManifestError, cache / "segments/00001" / name):
        CacheReader(cache).verify(full)


@pytest.mark.parametrize("full", [True, False])
def test_a_shortened_chunk_is_named(cache: Path, full: bool) -> None:
    path = cache / "segments/00002/hidden/c/1/0"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    with refused(ManifestError, path, size, size - 1):
        CacheReader(cache).verify(full)


@pytest.mark.parametrize("full", [True, False])
def test_swapped_segments_are_named(cache: Path, full: bool) -> None:
    segments = cache / "segments"
    (segments / "00000").rename(segments / "x")
    (segments / "00001").rename(segments / "00000")
    (segments / "x").rename(segments / "00001")
    with refused(ManifestError, "segments/00000/segment.json", 0, 1):
        CacheReader(cache).verify(full)


def test_swapped_chunks_of_one_size_are_named(cache: Path) -> None:
    one, other = (cache / f"segments/0000{number}/hidden/c/0/0" for number in (0, 1))
    first, second = one.read_bytes(), other.read_bytes()
    assert len(first) == len(second)
    one.write_bytes(second)
    other.write_bytes(first)
    with refused(ManifestError, cache / "segments/00000/hidden/c/0/0"):
        CacheReader(cache).verify()


def test_a_foreign_file_among_the_segments_is_named(cache: Path) -> None:
    (cache / "segments/00000/hidden/c/9").mkdir()
    (cache / "segments/00000/hidden/c/9/0").write_text("x")
    with refused(ManifestError, cache / "segments/00000/hidden/c/9/0"):
        CacheReader(cache).verify()
