import pickle
import shutil
from pathlib import Path

import pytest
from tiny_errors import refused
from tiny_states import EDITS, LENGTHS, assert_equal, edit, make, sample_of, spec_of
from zarr.storage import LocalStore

from data_specs.manifest import MANIFEST, ManifestError
from data_specs.target_cache import CacheError
from pipeline.states.reader import CacheReader
from pipeline.store.artifacts import Artifact


@pytest.mark.parametrize("codec", ["none", "zstd", "blosc"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("logits", ["none", "topk", "full"])
def test_samples_come_back_as_they_were(tmp_path: Path, codec: str, dtype: str, logits: str) -> None:
    spec = spec_of(codec=codec, dtype=dtype, logits=logits, top_k=4)
    samples = [sample_of(length, spec, seed) for seed, length in enumerate(LENGTHS)]
    reader = CacheReader(make(tmp_path, spec, samples).path)
    reader.verify()
    assert reader.spec == spec
    for i in (3, 0, 6, 4, 1, 2, 5):
        assert_equal(reader.read(i), samples[i])


def test_a_reader_goes_through_pickle_after_it_has_read(made: Artifact) -> None:
    """Pitfall 23: workers are spawned; a reader carries no open file into them."""
    reader = CacheReader(made.path)
    first = reader.read(0)
    assert_equal(pickle.loads(pickle.dumps(reader)).read(0), first)  # noqa: S301 (our own object)


def test_a_sample_is_read_without_reading_its_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(codec="zstd", chunk_tokens=4, shard_tokens=400)
    reader = CacheReader(make(tmp_path, spec, [sample_of(4, spec, i) for i in range(100)], 400).path)
    sizes, original = [], LocalStore.get_sync

    def counting(*args: object, **kwargs: object) -> object:
        value = original(*args, **kwargs)  # type: ignore[arg-type]
        sizes.append(len(value) if value is not None else 0)
        return value

    monkeypatch.setattr(LocalStore, "get_sync", counting)
    reader._array(0, "hidden"), reader._array(0, "last_hidden")
    sizes.clear()
    reader.read(50)
    assert len(sizes) == 4  # of either wide array the shard's index and one chunk
    assert sizes[0] == 100 * 16 + 4
    assert sizes[1] < 100 < (tmp_path / "cache/tiny/v0/segments/00000/hidden/c/0/0").stat().st_size


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("what", EDITS)
def test_an_edited_manifest_is_refused(cache: Path, what: str, full: bool) -> None:
    edit(cache / MANIFEST, EDITS[what])
    with pytest.raises(ManifestError, match=str(cache)):
        CacheReader(cache).verify(full)


def test_an_edited_record_is_refused(cache: Path) -> None:
    edit(cache / "cache.json", lambda record: record["spec"].update(taps=[0, 1]))
    with refused(ManifestError, "cache.json"):
        CacheReader(cache).verify(full=False)


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("name", ["hidden/c/0/0", "last_hidden/c/1/0", "input_ids/c/1"])
def test_a_missing_chunk_never_reads_as_zeros(tmp_path: Path, codec: str, name: str) -> None:
    """Pitfall 19, also for a reader that has opened the array before."""
    spec = spec_of(codec=codec)
    reader = CacheReader(make(tmp_path, spec, [sample_of(12, spec)]).path)
    reader.read(0)
    (reader.folder / "segments/00000" / name).unlink()
    with refused(CacheError, f"segments/00000/{name}"):
        reader.read(0)
    shutil.rmtree(reader.folder / "segments/00000/hidden")
    with refused(CacheError, "segments/00000/hidden"):
        CacheReader(reader.folder).read(0)


@pytest.mark.parametrize("name", ["cache.json", "index.parquet", "token_counts.parquet"])
def test_records_that_cannot_be_read_are_named(cache: Path, name: str) -> None:
    (cache / name).write_text("{}")
    with refused(ManifestError, cache / name):
        CacheReader(cache)
    (cache / name).unlink()
    with refused(ManifestError, cache / name):
        CacheReader(cache)
