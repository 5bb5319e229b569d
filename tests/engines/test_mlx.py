"""Exports in mlx-dspark on a CPU: its rounds equal draftline's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import results
from environments import Environment
from running import ask, counted
from subjects import Subject

from stages.export.source import read_source

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900, func_only=True)]


def readable(target: Path, copy: Path) -> Path:
    """The target with ``rope_theta`` at the top level of its config.json.

    mlx-lm's Llama reads no other place, and uses 10,000 if transformers 5 has put it into ``rope_parameters``.
    """
    shutil.copytree(target, copy)
    config = json.loads((copy / "config.json").read_text())
    theta = {"rope_theta": config["rope_parameters"]["rope_theta"]}
    (copy / "config.json").write_text(json.dumps(config | theta))
    return copy


def check(environment: Environment, subject: Subject, name: str, folder: Path, scratch: Path) -> None:
    facts, target = read_source(folder).facts, readable(subject.folder, scratch / "target")
    request = {"target": str(target), "draft": None, "prompts": subject.prompts, "new": subject.new}
    request["positions"] = facts.drafts
    own = ask(environment, "mlx_run.py", request)["answers"]
    request["draft"] = {"kind": facts.kind, "folder": str(folder)}
    answer = ask(environment, "mlx_run.py", request)
    theirs = counted(answer)
    answers, ours = subject.ours(name, overshoot=True)
    same = answer["answers"] == own == answers
    results.add(environment.versions, subject.name, f"{name} (mlx)", theirs, ours, same)
    assert answer["answers"] == own, "the draft changed mlx-dspark's output"
    assert answers == own, "mlx-dspark's output is another than draftline's"
    assert theirs == ours


@pytest.mark.parametrize("name", ["dspark", "dspark_reduced", "dflash", "dflash_fill_in"])
def test_mlx_drafts_as_draftline_does(mlx, bench, export, tmp_path, name: str) -> None:
    check(mlx, bench, name, export(bench.draft(name), "mlx"), tmp_path)


def test_mlx_drafts_for_smollm2(mlx, smollm2, export, tmp_path) -> None:
    folder = export(smollm2.draft("quickstart"), "mlx")
    check(mlx, smollm2, "DSpark of the quickstart", folder, tmp_path)
