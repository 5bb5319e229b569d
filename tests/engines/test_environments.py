"""The set-up of engines, without an engine: it is made once, repeated if incomplete, and has a reason if it fails."""

from __future__ import annotations

import sys
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
