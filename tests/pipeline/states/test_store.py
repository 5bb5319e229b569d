import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import zarr
from zarr.storage import LocalStore

from data_specs.manifest import MANIFEST, ManifestError, read_json, write_json
from data_specs.target_cache import CacheError, CacheSpec
from pipeline.states.index import write_index
from pipeline.states.reader import CacheReader
from pipeline.states.samples import Logits, Sample, check_finite, plan_segments
from pipeline.states.segments import SEALED, drop_damaged, segment_is_done
from pipeline.states.writer import write_segment
from pipeline.store.artifacts import Artifact, Store

VOCABULARY = 50


def spec_of(**changes: object) -> CacheSpec:
    values: dict[str, object] = {
        "taps": [0, 2], "hidden_size": 3, "vocab_size": VOCABULARY, "chunk_tokens": 4, "shard_tokens": 8,
    }  # fmt: skip
    return CacheSpec(**(values | changes))  # type: ignore[arg-type]


def sample_of(length: int, spec: CacheSpec, seed: int = 0, **changes: object) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[spec.dtype]

    def states(width: int) -> torch.Tensor:
        return torch.randn(length, width, generator=generator).to(dtype)

    logits = None
    if spec.logits == "topk":
        ids = torch.randint(VOCABULARY, (length, spec.top_k), generator=generator, dtype=torch.int32)
        logits = Logits(states(spec.top_k), ids, torch.randn(length, generator=generator))
    if spec.logits == "full":
        logits = Logits(states(VOCABULARY))
    values: dict[str, object] = {
        "input_ids": torch.randint(VOCABULARY, (length,), generator=generator),
        "loss_mask": torch.arange(length) >= length // 2,
        "hidden": states(2 * 3),
        "last_hidden": states(3),
        "split": "heldout" if seed % 3 == 2 else "train",
        "key": f"key{seed}",
        "logits": logits,
    }
    return Sample(**(values | changes))  # type: ignore[arg-type]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32)


def assert_equal(got: Sample, expected: Sample) -> None:
    assert (got.key, got.split) == (expected.key, expected.split)
    assert torch.equal(got.input_ids, expected.input_ids)
    assert torch.equal(got.loss_mask, expected.loss_mask)
    assert torch.equal(bits(got.hidden), bits(expected.hidden))
    assert torch.equal(bits(got.last_hidden), bits(expected.last_hidden))
    if expected.logits is None:
        assert got.logits is None
        return
    for name in ("values", "ids", "lse"):
        one, other = getattr(got.logits, name), getattr(expected.logits, name)
        assert (one is None and other is None) or torch.equal(one, other)


def make(root: Path, spec: CacheSpec, samples: list[Sample], segment_tokens: int = 12) -> Artifact:
    """A committed cache of ``samples``."""
    store = Store(root)
    work = store.begin("cache", "tiny", 1, "f" * 64, {"answers": "a" * 64}, {"taps": spec.taps})
    segments = plan_segments([len(sample.input_ids) for sample in samples], segment_tokens)
    for number, members in enumerate(segments):
        write_segment(work.path, number, [samples[i] for i in members], spec)
    sealed = {name: getattr(work, name) for name in SEALED if name != "counts"}
    return store.commit(work, write_index(work.path, spec, len(segments), sealed))


LENGTHS = (5, 7, 3, 9, 20, 1, 2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    spec = spec_of()
    samples = [sample_of(length, spec, seed) for seed, length in enumerate(LENGTHS)]
    return make(tmp_path_factory.mktemp("made"), spec, samples)


@pytest.fixture
def cache(made: Artifact, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(made.path, tmp_path / "v0"))


# --- the way there and back ---


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


def test_the_index_counts_what_is_there(made: Artifact) -> None:
    reader = CacheReader(made.path)
    assert len(reader) == 7
    assert reader.lengths.tolist() == [5, 7, 3, 9, 20, 1, 2]
    assert reader.supervised.tolist() == [3, 4, 2, 5, 10, 1, 1]
    assert reader.keys == ["key0", "key1", "key2", "key3", "key4", "key5", "key6"]
    assert reader.splits == ["train", "train", "heldout", "train", "train", "heldout", "train"]
    ids = torch.cat([reader.read(i).input_ids for i in range(7)])
    assert reader.token_counts.tolist() == torch.bincount(ids, minlength=VOCABULARY).tolist()
    assert [reader.read_ids(4)[0].tolist(), reader.read_ids(4)[1].tolist()] == [
        reader.read(4).input_ids.tolist(), [False] * 10 + [True] * 10,
    ]  # fmt: skip
    counts = {name: made.manifest.counts[name] for name in ("samples", "tokens", "supervised", "splits")}
    assert counts == {"samples": 7, "tokens": 47, "supervised": 26, "splits": {"train": 5, "heldout": 2}}
    files = [
        path for path in (made.path / "segments").rglob("*") if path.is_file() and path.name != "segment.json"
    ]
    assert made.manifest.counts["bytes"] == sum(path.stat().st_size for path in files)


def test_segments_are_ordinary_zarr_that_says_what_it_holds(made: Artifact) -> None:
    group = zarr.open_group(made.path / "segments/00000", mode="r")
    assert group["hidden"].dtype == np.uint16
    assert dict(group["hidden"].attrs) == {"dtype": "bfloat16"}
    assert group["offsets"][:].tolist() == [0, 5, 12]
    assert group["hidden"].metadata.dimension_names == ("token", "feature")


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


# --- segments ---


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


def test_damaged_segments_are_dropped(tmp_path: Path) -> None:
    spec = spec_of()
    for number in range(3):
        write_segment(tmp_path, number, [sample_of(9, spec, number)], spec)
    flip(tmp_path / "segments/00001/hidden/c/0/0")
    errors = drop_damaged(tmp_path, range(3))
    assert len(errors) == 1
    assert "segments/00001/hidden/c/0/0: damaged" in errors[0]
    assert [segment_is_done(tmp_path, number) for number in range(3)] == [True, False, True]


# --- what must not enter ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"hidden": torch.zeros(8, 6, dtype=torch.bfloat16)},
            r"hidden: expected the shape \(9, 6\), got \(8, 6\)",
        ),
        (
            {"last_hidden": torch.zeros(9, 6, dtype=torch.bfloat16)},
            r"last_hidden: expected the shape \(9, 3\)",
        ),
        (
            {"loss_mask": torch.ones(10, dtype=torch.bool)},
            r"loss_mask: expected the shape \(9,\), got \(10,\)",
        ),
        ({"hidden": torch.zeros(9, 6)}, r"hidden: expected torch.bfloat16, got torch.float32"),
        ({"split": "benchmark"}, "split: expected"),
    ],
)
def test_samples_of_the_wrong_shape_are_named(tmp_path: Path, changes: dict, message: str) -> None:
    """Pitfall 15: fewer rows than tokens."""
    spec = spec_of()
    with pytest.raises(CacheError, match=f"sample key0: {message}"):
        write_segment(tmp_path, 0, [sample_of(9, spec, **changes)], spec)
    assert list(tmp_path.iterdir()) == []


def test_states_that_are_not_finite_are_named() -> None:
    """Pitfall 15."""
    sample = sample_of(9, spec_of())
    check_finite(sample)
    sample.last_hidden[4, 1] = float("inf")
    with pytest.raises(CacheError, match="sample key0: last_hidden: not finite at token 4 of 9"):
        check_finite(sample)


# --- damages (issue: must hold 6) ---


def flip(path: Path, at: int = 7) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def edit(path: Path, change: Callable[[dict], object]) -> None:
    value = read_json(path)
    change(value)
    write_json(path, value)


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
    with pytest.raises(ManifestError, match=f"segments/00001/{name}: (missing|recorded, but missing)"):
        CacheReader(cache).verify(full)


@pytest.mark.parametrize("full", [True, False])
def test_a_shortened_chunk_is_named(cache: Path, full: bool) -> None:
    path = cache / "segments/00002/hidden/c/1/0"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ManifestError, match="segments/00002/hidden/c/1/0: expected .* bytes, got"):
        CacheReader(cache).verify(full)


@pytest.mark.parametrize("full", [True, False])
def test_swapped_segments_are_named(cache: Path, full: bool) -> None:
    segments = cache / "segments"
    (segments / "00000").rename(segments / "x")
    (segments / "00001").rename(segments / "00000")
    (segments / "x").rename(segments / "00001")
    with pytest.raises(ManifestError, match="segments/00000/segment.json: expected segment 0, got segment 1"):
        CacheReader(cache).verify(full)


def test_swapped_chunks_of_one_size_are_named(cache: Path) -> None:
    one, other = (cache / f"segments/0000{number}/hidden/c/0/0" for number in (0, 1))
    first, second = one.read_bytes(), other.read_bytes()
    assert len(first) == len(second)
    one.write_bytes(second)
    other.write_bytes(first)
    with pytest.raises(ManifestError, match="segments/00000/hidden/c/0/0: damaged"):
        CacheReader(cache).verify()


def test_a_foreign_file_among_the_segments_is_named(cache: Path) -> None:
    (cache / "segments/00000/hidden/c/9").mkdir()
    (cache / "segments/00000/hidden/c/9/0").write_text("x")
    with pytest.raises(ManifestError, match="hidden/c/9/0: not part of the cache, but present on disk"):
        CacheReader(cache).verify()


EDITS: dict[str, Callable[[dict], object]] = {
    "counts": lambda m: m["counts"].update(samples=8),
    "config": lambda m: m["config"].update(taps=[0, 1]),
    "parents": lambda m: m["parents"].update(answers="b" * 64),
    "fingerprint": lambda m: m.update(fingerprint="0" * 64),
    "name": lambda m: m.update(name="other"),
    "schema_version": lambda m: m.update(schema_version=2),
    "kind": lambda m: m.update(kind="answers"),
    "a size": lambda m: m["files"]["segments/00000/hidden/c/0/0"].update(size=1),
    "a hash": lambda m: m["files"]["segments/00000/hidden/c/0/0"].update(sha256="0" * 64),
    "the hash of the index": lambda m: m["files"]["index.parquet"].update(sha256="0" * 64),
    "one file less": lambda m: m["files"].pop("segments/00000/hidden/c/0/0"),
    "no index": lambda m: m["files"].pop("index.parquet"),
    "one file more": lambda m: m["files"].update({"more": {"size": 0, "sha256": ""}}),
    "a field less": lambda m: m.pop("counts"),
}


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("what", EDITS)
def test_an_edited_manifest_is_refused(cache: Path, what: str, full: bool) -> None:
    edit(cache / MANIFEST, EDITS[what])
    with pytest.raises(ManifestError, match=str(cache)):
        CacheReader(cache).verify(full)


def test_an_edited_record_is_refused(cache: Path) -> None:
    edit(cache / "cache.json", lambda record: record["spec"].update(taps=[0, 1]))
    with pytest.raises(ManifestError, match="cache.json: "):
        CacheReader(cache).verify(full=False)


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("name", ["hidden/c/0/0", "last_hidden/c/1/0", "input_ids/c/1"])
def test_a_missing_chunk_never_reads_as_zeros(tmp_path: Path, codec: str, name: str) -> None:
    """Pitfall 19, also for a reader that has opened the array before."""
    spec = spec_of(codec=codec)
    reader = CacheReader(make(tmp_path, spec, [sample_of(12, spec)]).path)
    reader.read(0)
    (reader.folder / "segments/00000" / name).unlink()
    with pytest.raises(CacheError, match=f"segments/00000/{name}: the chunk is missing"):
        reader.read(0)
    shutil.rmtree(reader.folder / "segments/00000/hidden")
    with pytest.raises(CacheError, match="segments/00000/hidden.*: the (array|chunk) is missing"):
        CacheReader(reader.folder).read(0)


@pytest.mark.parametrize("name", ["cache.json", "index.parquet", "token_counts.parquet"])
def test_records_that_cannot_be_read_are_named(cache: Path, name: str) -> None:
    (cache / name).write_text("{}")
    with pytest.raises(ManifestError, match=f"{name}: expected"):
        CacheReader(cache)
    (cache / name).unlink()
    with pytest.raises(ManifestError, match=f"{name}: expected"):
        CacheReader(cache)


def test_an_index_of_other_samples_is_refused(cache: Path) -> None:
    table = pq.read_table(cache / "index.parquet")
    pq.write_table(table.take([1, 0, 2, 3, 4, 5, 6]), cache / "index.parquet")
    with pytest.raises(ManifestError, match="index.parquet: its samples are not those of the segments"):
        CacheReader(cache).verify(full=False)


def test_json_of_the_manifest_is_what_is_compared(made: Artifact) -> None:
    """The seal goes through JSON like the manifest: a second reading of either is equal."""
    record = json.loads((made.path / "cache.json").read_text())
    assert record["sealed"]["config"] == {"taps": [0, 2]}
    assert record["segments"] == 4
