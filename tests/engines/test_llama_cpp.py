"""GGUF exports in llama.cpp's server, with its own converter and its own counters."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import httpx
import pytest
import results
from environments import Environment
from serving import llama_server, served
from subjects import Counters, Prompts, Subject

from data_specs.export import DRAFT_GGUF, TARGET_GGUF
from stages.export import llama_cpp as exporter
from stages.export.source import read_source

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900, func_only=True)]
TINY = ["dspark", "dspark_reduced", "dflash", "dflash_fill_in", "eagle3_llama", "eagle3_llama_reduced"]
METRIC = re.compile(r"^llamacpp:spec_decode_num_(\w+)_total(?:\{position=\"(\d+)\"\})? (\d+)", re.MULTILINE)


def complete(address: str, prompts: Prompts, new: int) -> list[list[int]]:
    """The greedy answers of the server at ``address``, one prompt at a time."""
    answers = []
    for prompt in prompts:
        body = {"prompt": prompt, "n_predict": new, "temperature": 0, "top_k": 1, "ignore_eos": True}
        body |= {"return_tokens": True, "cache_prompt": False}
        made = httpx.post(f"{address}/completion", json=body, timeout=300).raise_for_status()
        answers.append(made.json()["tokens"])
    return answers


def counted(address: str, drafts: int) -> Counters:
    """The server's counters of speculative decoding."""
    found = METRIC.findall(httpx.get(f"{address}/metrics").raise_for_status().text)
    value = {name: int(count) for name, position, count in found if not position}
    places = {int(position): int(count) for _, position, count in found if position}
    return Counters(value["drafts"], value["accepted_tokens"], [places.get(k, 0) for k in range(drafts)])


def check(
    environment: Environment, subject: Subject, name: str, folder: Path, form: str, logs: Path
) -> Counters:
    facts = read_source(folder).facts
    with served(llama_server(environment, folder / TARGET_GGUF), logs / "plain.log") as server:
        own = complete(server.url, subject.prompts, subject.new)
    drafting = ["-md", folder / DRAFT_GGUF, "--spec-type", f"draft-{facts.kind}", "--spec-draft-p-min", "0"]
    drafting += ["--spec-draft-n-max", str(facts.drafts), "-ctkd", "f32", "-ctvd", "f32"]
    with served(llama_server(environment, folder / TARGET_GGUF, *drafting), logs / "draft.log") as server:
        drafted = complete(server.url, subject.prompts, subject.new)
        theirs = counted(server.url, facts.drafts)
    answers, ours = subject.ours(name, overshoot=False)
    same = drafted == own == answers
    results.add(environment.versions, subject.name, f"{name} ({form})", theirs, ours, same)
    assert drafted == own, "the draft changed llama.cpp's output"
    assert answers == own, "llama.cpp's output is another than draftline's"
    assert theirs == ours
    return theirs


@pytest.mark.parametrize("name", TINY)
def test_llama_cpp_drafts_as_draftline_does(llama_cpp, converter, bench, export, tmp_path, name: str) -> None:
    settings = {"converter": str(converter.script), "outtype": "f32", "target": str(bench.folder)}
    folder = export(bench.draft(name), "llama_cpp", **settings)
    check(llama_cpp, bench, name, folder, "llama_cpp", tmp_path)


def test_llama_cpp_takes_dspark_of_speculators(llama_cpp, converter, bench, export, tmp_path) -> None:
    folder = Path(shutil.copytree(export(bench.draft("dspark"), "speculators"), tmp_path / "export"))
    exporter.convert(converter, folder, "dspark", bench.folder)
    check(llama_cpp, bench, "dspark", folder, "speculators", tmp_path)


def test_llama_cpp_accepts_nearly_all_of_an_overfitted_draft(
    llama_cpp, converter, overfitted, export, tmp_path
) -> None:
    """Pitfall 45, in the engine, with 7 drafts per block."""
    settings = {"converter": str(converter.script), "outtype": "f32", "target": str(overfitted.folder)}
    folder = export(overfitted.draft("dspark"), "llama_cpp", **settings)
    theirs = check(llama_cpp, overfitted, "dspark", folder, "llama_cpp", tmp_path)
    assert theirs.accepted / theirs.drafts >= 6.5


def test_llama_cpp_drafts_for_smollm2(llama_cpp, converter, smollm2, export, tmp_path) -> None:
    settings = {"converter": str(converter.script), "outtype": "f32", "target": str(smollm2.folder)}
    folder = export(smollm2.draft("quickstart"), "llama_cpp", **settings)
    check(llama_cpp, smollm2, "DSpark of the quickstart", folder, "llama_cpp", tmp_path)
