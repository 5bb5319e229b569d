"""The commands that the documents print: each composes to a valid config."""

import re
import shlex
from pathlib import Path

import pytest
from composing import by_hydra, composed

from pipeline.__main__ import listed
from pipeline.config import resolve

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "docs/results.md")
PLACES = {
    "<folder in the native layout>": "folder",
    "<its target>": "folder",
    "target=T ": "target=qwen3_4b ",
}


def commands() -> list[str]:
    """Arguments of every ``python -m pipeline`` in a block of code, with the variables of that document replaced."""
    found = []
    for document in DOCUMENTS:
        text = (ROOT / document).read_text().replace("\\\n", " ")
        variables = dict(re.findall(r"^    ([A-Z]+)='(.*)'$", text, re.MULTILINE))
        for line in re.findall(r"^    python -m pipeline (.*)$", text, re.MULTILINE):
            for name, value in [*PLACES.items(), *((f"${name}", value) for name, value in variables.items())]:
                line = line.replace(name, value)
            found.append(line)
    return found


@pytest.mark.parametrize("command", commands())
def test_a_printed_command_composes(command: str) -> None:
    config = resolve(by_hydra(*listed(shlex.split(command, comments=True))))
    assert config.stage.steps


def test_the_documents_print_every_stage() -> None:
    stages = {found for command in commands() for found in re.findall(r"\bstage=(\w+)", command)}
    assert {"cache", "train", "evaluate", "study", "export", "list"} <= stages


def test_the_example_for_eight_gpus_has_a_server_answer() -> None:
    (first, *_) = [c for c in commands() if "stage=cache" in c and "ranks=8" in c]
    config = composed(*shlex.split(first, comments=True))
    assert (config.answers.source, config.ranks) == ("openai", 8)
    assert config.answers.openai.base_urls == ["http://127.0.0.1:8000/v1"]
