"""Checks before the start: their states, what refuses a run, and what earlier steps and jobs will have made."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from composing import composed

from data_specs import files
from data_specs.errors import UserError
from pipeline.preflight import Ahead, Check, LaterError, PreflightError, checked, refuse, room, show
from pipeline.store.artifacts import ArtifactError


def raising(error: Exception) -> str:
    raise error


def test_a_check_is_ok_a_problem_or_not_made() -> None:
    assert checked("a", lambda: "3 rows") == Check("a", "ok", "3 rows")
    assert checked("b", lambda: raising(UserError("no")), "do x") == Check("b", "problem", "no", "do x")
    assert checked("c", lambda: raising(LaterError("later"))) == Check("c", "not checked", "later")
    with pytest.raises(KeyError):  # our own mistakes are not the user's
        checked("d", lambda: raising(KeyError("x")))


def test_all_problems_are_said_at_once_and_each_once() -> None:
    bad = Check("key", "problem", "expected 1, got 2", "set 1")
    refuse([Check("a", "ok", "fine"), Check("b", "not checked", "later")])
    with pytest.raises(PreflightError) as one:
        refuse([bad, bad])
    assert str(one.value) == "key: expected 1, got 2; set 1"
    with pytest.raises(PreflightError) as two:
        refuse([bad, Check("file", "problem", "not there")])
    assert str(two.value).splitlines()[1:] == ["  1. key: expected 1, got 2; set 1", "  2. file: not there"]


def test_each_line_has_its_mark(capsys: pytest.CaptureFixture[str]) -> None:
    show([Check("a", "ok", "[1, 2]"), Check("b", "problem", "no", "do"), Check("c", "not checked", "later")])
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split("  ")[1] for line in lines] == ["ok", "problem", "not checked"]
    assert lines[0].endswith("a: [1, 2]")


def test_the_steps_together_need_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    steps = [Check("cache", "ok", "", least_bytes=600), Check("draft", "ok", "", least_bytes=400)]
    assert room(steps, tmp_path / "artifacts").state == "ok"
    assert room([*steps, Check("more", "ok", "", least_bytes=1)], tmp_path / "artifacts").state == "problem"
    assert not (tmp_path / "artifacts").exists()


def test_what_an_earlier_step_makes_is_not_looked_for(tmp_path: Path) -> None:
    ahead = Ahead(composed("stage=all", "target.name=t", "data.name=d"))
    ahead.config.artifacts = str(tmp_path)
    with pytest.raises(ArtifactError, match="cache=t_d"):
        ahead.cache()
    with pytest.raises(LaterError):
        ahead.after("cache").cache()
    with pytest.raises(LaterError):
        ahead.after("train").draft()
    ahead.config.cache = "named"
    assert ahead.after("cache").coming == frozenset(), "a cache that is named is not made"
