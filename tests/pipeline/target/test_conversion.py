from pathlib import Path

import pytest
from tiny_errors import refused

from pipeline.config import ConfigError
from pipeline.target import conversion
from pipeline.target.conversion import cache_home, made_once


def make(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text("{}")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_folder_is_made_once_and_whole(cache: Path) -> None:
    folder = made_once("tiny", {"gguf": "a"}, "converting", make)
    assert folder == cache / "draftline/targets/tiny"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "source.json"]
    assert made_once("tiny", {"gguf": "a"}, "converting", lambda _: pytest.fail("made again")) == folder


def test_an_incomplete_folder_is_replaced(cache: Path) -> None:
    """A folder without source.json is what a killed process left."""
    half = cache / "draftline/targets/tiny"
    half.mkdir(parents=True)
    (half / "half").write_text("")
    made_once("tiny", {}, "converting", make)
    assert sorted(path.name for path in half.iterdir()) == ["config.json", "source.json"]


def test_a_folder_of_another_origin_is_named(cache: Path) -> None:
    made_once("tiny", {"gguf": "a"}, "converting", make)
    with refused(ConfigError, "target.name=tiny", cache / "draftline/targets/tiny", {"gguf": "b"}):
        made_once("tiny", {"gguf": "b"}, "converting", make)


def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with refused(ConfigError, tmp_path / "file/draftline", "XDG_CACHE_HOME"):
        made_once("tiny", {}, "converting", make)


def test_a_user_without_a_home_is_told_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(conversion.Path, "home", homeless)
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        cache_home()
