import json
from pathlib import Path

import pytest
from tiny_errors import refused

import data_specs.answers
import data_specs.evaluation
import data_specs.export
import data_specs.study
import data_specs.target_cache
import stages.compare.run
import stages.report.run
import stages.train.loop
from data_specs import manifest as m


def example(**changes: object) -> m.Manifest:
    values = {
        "kind": "draft", "name": "a", "version": "v0", "schema_version": 1, "fingerprint": "f",
        "parents": {"cache": "c"},
        "config": {"x": 1}, "counts": {"steps": 3}, "packages": {}, "revision": None, "created": "2026-01-01",
        "files": {"a.bin": m.FileRecord(3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")},
    }  # fmt: skip
    return m.Manifest(**(values | changes))


def test_written_and_read(tmp_path: Path) -> None:
    m.write_manifest(tmp_path, example())
    assert m.read_manifest(tmp_path) == example()
    assert [p.name for p in tmp_path.iterdir()] == ["manifest.json"], "no temporary file is left"


def test_fingerprint_depends_on_values_not_on_order() -> None:
    assert m.fingerprint({"a": 1, "b": [2]}) == m.fingerprint({"b": [2], "a": 1})
    assert m.fingerprint({"a": 1}) != m.fingerprint({"a": 2})
    assert m.fingerprint("a", "b") != m.fingerprint("ab")


def test_verify_names_the_damaged_file(tmp_path: Path) -> None:
    """Must hold 6, pitfalls 19 and 20: missing, shortened, flipped."""
    files = example().files
    with pytest.raises(m.ManifestError, match="a.bin"):
        m.verify_files(tmp_path, files)
    (tmp_path / "a.bin").write_bytes(b"ab")
    with refused(m.ManifestError, "a.bin", 3, 2):
        m.verify_files(tmp_path, files)
    (tmp_path / "a.bin").write_bytes(b"abd")
    with pytest.raises(m.ManifestError, match="a.bin.*ba7816bf8f01"):
        m.verify_files(tmp_path, files)
    (tmp_path / "a.bin").write_bytes(b"abc")
    m.verify_files(tmp_path, files)
    assert m.folder_records(tmp_path) == files


@pytest.mark.parametrize(
    ("text", "got"), [("", []), ("{", []), ("[]", ["list"]), (json.dumps({"kind": "draft"}), ["['kind']"])]
)
def test_damaged_manifest(tmp_path: Path, text: str, got: list[str]) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with refused(m.ManifestError, "manifest.json", *got):
        m.read_manifest(tmp_path)


def test_unknown_kind_and_absence(tmp_path: Path) -> None:
    with pytest.raises(m.ManifestError, match="manifest.json"):
        m.read_manifest(tmp_path)
    m.write_manifest(tmp_path, example(kind="soup"))
    with refused(m.ManifestError, "manifest.json", "kind", "'soup'"):
        m.read_manifest(tmp_path)


@pytest.mark.parametrize(
    "field,value", [("version", "v9"), ("counts", {"steps": 4}), ("created", "2027"), ("revision", "a")]
)
def test_an_edited_manifest_is_refused(tmp_path: Path, field: str, value: object) -> None:
    """Must hold 6."""
    m.write_manifest(tmp_path, example())
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(m.ManifestError, match="manifest.json"):
        m.read_manifest(tmp_path)


def test_another_version_s_artifact_is_refused_by_its_version(tmp_path: Path) -> None:
    for version in (99, 0, "1"):
        m.write_manifest(tmp_path, example(schema_version=version))
        with refused(m.ManifestError, "manifest.json", "schema_version", repr(version)):
            m.read_manifest(tmp_path)


def test_the_versions_are_those_that_are_written() -> None:
    modules = {
        "answers": data_specs.answers, "cache": data_specs.target_cache, "evaluation": data_specs.evaluation,
        "study": data_specs.study, "export": data_specs.export, "draft": stages.train.loop,
        "comparison": stages.compare.run, "report": stages.report.run,
    }  # fmt: skip
    assert {kind: module.SCHEMA_VERSION for kind, module in modules.items()} == m.VERSIONS
