import errno
import re
from pathlib import Path
from typing import Any

import pytest
from tiny_errors import refused

from data_specs.manifest import ManifestError
from pipeline.store.artifacts import Artifact, ArtifactError, Store


def make(store: Store, name: str = "a", fingerprint: str = "f" * 64, text: str = "x") -> Artifact:
    work = store.begin("draft", name, 1, fingerprint, {"cache": "c"}, {"lr": 0.1})
    (work.path / "weights.bin").write_text(text)
    return store.commit(work, {"steps": 2})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_versions_count_up_and_latest_is_found(store: Store) -> None:
    first, second = make(store, fingerprint="1" * 64), make(store, fingerprint="2" * 64)
    assert (first.manifest.version, second.manifest.version) == ("v0", "v1")
    assert store.resolve("draft", "a").path == second.path
    assert store.resolve("draft", "a:latest").path == second.path
    assert store.resolve("draft", "a:v0").path == first.path
    assert store.resolve("draft", str(first.path)).reference == "a:v0"
    assert [x.reference for x in store.list()] == ["a:v0", "a:v1"]


def test_tenth_version_is_after_the_ninth(store: Store) -> None:
    for number in range(11):
        make(store, fingerprint=f"{number:064d}")
    assert store.resolve("draft", "a").manifest.version == "v10"


def test_same_inputs_are_found_again(store: Store) -> None:
    made = make(store)
    assert store.find("draft", "f" * 64).path == made.path
    assert store.find("draft", "0" * 64) is None


def test_an_unfinished_artifact_does_not_exist_and_is_gone_on_with(store: Store) -> None:
    """Pitfall 20: existence is not completion."""
    work = store.begin("draft", "a", 1, "f" * 64, {}, {})
    (work.path / "half").write_text("1")
    assert store.list() == [] and store.find("draft", "f" * 64) is None
    assert store.begin("draft", "a", 1, "f" * 64, {}, {}).path == work.path
    assert (work.path / "half").read_text() == "1"
    assert store.begin("draft", "a", 1, "0" * 64, {}, {}).path != work.path


def test_changed_files_are_refused(store: Store) -> None:
    made = make(store)
    made.verify()
    (made.path / "weights.bin").write_text("y")
    with pytest.raises(ManifestError, match="weights.bin"):
        made.verify()


def test_a_missing_reference_says_what_there_is(store: Store) -> None:
    make(store)
    with refused(ArtifactError, "draft=b", "a:v0"):
        store.resolve("draft", "b")
    with pytest.raises(ArtifactError, match="cache=a"):
        store.resolve("cache", "a")


def test_a_folder_of_another_kind_is_refused(store: Store) -> None:
    made = make(store)
    with refused(ArtifactError, made.path, "cache", "draft"):
        store.resolve("cache", str(made.path))


def test_names_that_would_leave_the_folder_are_refused(store: Store) -> None:
    with pytest.raises(ArtifactError, match=re.escape("'../x'")):
        store.begin("draft", "../x", 1, "f", {}, {})
    with refused(ArtifactError, "'a/../../x'"):  # a claim is made in this folder before the artifact is begun
        store.work_folder("draft", "a/../../x", "f")


def test_manifest_holds_lineage_and_versions(store: Store) -> None:
    manifest = make(store).manifest
    assert (
        manifest.parents == {"cache": "c"}
        and manifest.config == {"lr": 0.1}
        and manifest.counts == {"steps": 2}
    )
    assert manifest.packages["torch"].startswith("2.")
    assert list(manifest.files) == ["weights.bin"]


def test_what_a_killed_writer_left_behind_is_not_committed(store: Store) -> None:
    work = store.begin("draft", "a", 1, "f" * 64, {}, {})
    (work.path / "weights.bin").write_text("x")
    (work.path / "sub").mkdir()
    for leftover in (".manifest.json.123.tmp", "sub/.index.parquet.9.tmp"):
        (work.path / leftover).write_text("half")
    assert list(store.commit(work, {}).manifest.files) == ["weights.bin"]


def test_a_damaged_manifest_does_not_stop_work_on_others(store: Store, capsys) -> None:
    bad, good = make(store, "bad", "1" * 64), make(store, "good", "2" * 64)
    (bad.path / "manifest.json").write_text("{")
    assert [a.path for a in store.list()] == [good.path]
    assert str(bad.path) in capsys.readouterr().out
    with pytest.raises(ManifestError, match="manifest.json"):
        store.resolve("draft", str(bad.path))


@pytest.mark.parametrize("unreadable", ["folder", "denied", "bytes"])
def test_an_unreadable_manifest_does_not_stop_work_on_others(store, capsys, monkeypatch, unreadable) -> None:
    """A disk gives an I/O error for one file, or a rank of another user may not read it."""
    bad, good = make(store, "bad", "1" * 64), make(store, "good", "2" * 64)
    path = bad.path / "manifest.json"
    if unreadable == "folder":
        path.unlink()
        path.mkdir()
    elif unreadable == "bytes":
        path.write_bytes(b"\xff\xfe")
    else:
        read = Path.read_text

        def denied(self: Path, *args: Any, **kwargs: Any) -> str:
            if self == path:
                raise PermissionError(errno.EACCES, "Permission denied", str(self))
            return read(self, *args, **kwargs)

        monkeypatch.setattr(Path, "read_text", denied)
    assert [a.path for a in store.list()] == [good.path]
    assert store.find("draft", "2" * 64) == good and store.resolve("draft", "good") == good
    assert str(path) in capsys.readouterr().out


def damage(made: Artifact, how: str) -> str:
    """Damage ``made`` after its commit; returns the name that an error must tell."""
    weights = made.path / "weights.bin"
    if how == "flipped":
        weights.write_text("y")
    elif how == "cut":
        weights.write_text("")
    elif how == "removed":
        weights.unlink()
    else:
        (made.path / "more.parquet").write_text("unlisted")
        return "more.parquet"
    return "weights.bin"


@pytest.mark.parametrize("how", ["flipped", "cut", "removed", "added"])
def test_every_reader_gets_a_whole_artifact(store: Store, how: str) -> None:
    """A damaged artifact is not passed on, by whichever way it is asked for."""
    made = make(store)
    name = damage(made, how)
    for ask in (
        lambda: store.find("draft", "f" * 64),
        lambda: store.resolve("draft", "a"),
        lambda: store.resolve("draft", str(made.path)),
    ):
        with refused(ManifestError, name):
            ask()
    assert [one.reference for one in store.list()] == ["a:v0"]  # a list opens nothing


def test_a_calibration_that_an_earlier_version_kept_beside_its_draft_is_no_damage(store: Store) -> None:
    made = make(store)
    (made.path / "calibration.json").write_text("{}")
    assert store.resolve("draft", "a").path == made.path


def test_of_a_cache_names_and_sizes_are_compared(store: Store) -> None:
    """Its digests are read once, by the training."""
    work = store.begin("cache", "c", 1, "c" * 64, {}, {})
    (work.path / "shard").write_text("abc")
    made = store.commit(work, {})
    (made.path / "shard").write_text("xyz")
    assert store.resolve("cache", "c").path == made.path
    (made.path / "shard").write_text("xy")
    with refused(ManifestError, "shard", 3, 2):
        store.resolve("cache", "c")
