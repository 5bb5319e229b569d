"""Exports in vLLM on a CPU.

Eagle3 and DFlash run on its first model runner. DSpark needs the second, whose Triton kernels are interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import results
from environments import Environment
from running import ask, counted
from subjects import Counters, Subject

from stages.export.source import read_source

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200, func_only=True)]
Plain = Callable[[Subject], list[list[int]]]
TINY = [
    ("dspark", "vllm"),
    ("dspark", "speculators"),
    ("dspark_reduced", "vllm"),
    ("dflash", "vllm"),  # it samples from the anchor, so it has DSpark's layout with a Markov head of zeros
    ("dflash_fill_in", "vllm"),
    ("dflash_fill_in", "speculators"),
    ("eagle3", "vllm"),
    ("eagle3_llama", "vllm"),
    ("eagle3_llama", "speculators"),
    ("eagle3_llama_reduced", "vllm"),
]


def run(environment: Environment, subject: Subject, draft: Path | None) -> dict[str, Any]:
    """Answers to the subject's prompts, with ``draft`` or without a draft."""
    request = {"target": str(subject.folder), "draft": None, "prompts": subject.prompts, "new": subject.new}
    request["length"] = max(map(len, subject.prompts)) + subject.new + 8
    if draft is None:
        return ask(environment, "vllm_run.py", request)
    facts = read_source(draft).facts
    request["draft"] = {"method": facts.kind, "model": str(draft), "num_speculative_tokens": facts.drafts}
    if facts.kind != "dspark":
        return ask(environment, "vllm_run.py", request)
    second = {"VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1"}
    return ask(environment, "vllm_run.py", request, PYTHONPATH=str(environment.folder / "extras"), **second)


@pytest.fixture(scope="module")
def plain(vllm: Environment) -> Plain:
    """vLLM's own answers, without a draft."""
    known: dict[str, list[list[int]]] = {}

    def answers(subject: Subject) -> list[list[int]]:
        if subject.name not in known:
            known[subject.name] = run(vllm, subject, None)["answers"]
        return known[subject.name]

    return answers


def check(
    environment: Environment, subject: Subject, name: str, folder: Path, form: str, plain: Plain
) -> Counters:
    answer = run(environment, subject, folder)
    own, theirs = plain(subject), counted(answer)
    answers, ours = subject.ours(name, overshoot=True)
    same = answer["answers"] == own == answers
    results.add(environment.versions, subject.name, f"{name} ({form})", theirs, ours, same)
    assert answer["answers"] == own, "the draft changed vLLM's output"
    assert answers == own, "vLLM's output is another than draftline's"
    assert theirs == ours
    return theirs


@pytest.mark.parametrize("name,form", TINY)
def test_vllm_drafts_as_draftline_does(vllm, bench, export, plain, name: str, form: str) -> None:
    check(vllm, bench, name, export(bench.draft(name), form), form, plain)


def test_vllm_accepts_nearly_all_of_an_overfitted_draft(vllm, overfitted, export, plain) -> None:
    """Pitfall 45, in the engine, with 7 drafts per block."""
    folder = export(overfitted.draft("dspark"), "vllm")
    theirs = check(vllm, overfitted, "dspark", folder, "vllm", plain)
    assert theirs.accepted / theirs.drafts >= 6.5


def test_vllm_drafts_for_smollm2(vllm, smollm2, export, plain) -> None:
    folder = export(smollm2.draft("quickstart"), "vllm")
    check(vllm, smollm2, "DSpark of the quickstart", folder, "vllm", plain)
