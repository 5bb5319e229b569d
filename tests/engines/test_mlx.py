"""Exports in mlx-dspark on a CPU: its rounds are ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import results
from environments import Environment
from running import ask, counted
from subjects import Subject

from stages.export.source import read_source

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900, func_only=True)]


def check(environment: Environment, subject: Subject, name: str, folder: Path) -> None:
    facts = read_source(folder).facts
    request = {"target": str(subject.folder), "draft": None, "prompts": subject.prompts, "new": subject.new}
    request["positions"] = facts.drafts
    own = ask(environment, "mlx_run.py", request)["answers"]
    request["draft"] = {"kind": facts.kind, "folder": str(folder)}
    answer = ask(environment, "mlx_run.py", request)
    theirs = counted(answer)
    answers, ours = subject.ours(name, overshoot=True)
    results.add(environment.versions, subject.name, f"{name} (mlx)", theirs, ours)
    assert answer["answers"] == own, "the draft changed mlx-dspark's output"
    assert answers == own, "mlx-dspark's output is another than draftline's"
    assert theirs == ours


@pytest.mark.parametrize("name", ["dspark", "dspark_reduced", "dflash", "dflash_fill_in"])
def test_mlx_drafts_as_draftline_does(mlx, bench, export, name: str) -> None:
    check(mlx, bench, name, export(bench.draft(name), "mlx"))


def test_mlx_drafts_for_smollm2(mlx, smollm2, export) -> None:
    check(mlx, smollm2, "DSpark of the quickstart", export(smollm2.draft("quickstart"), "mlx"))
