"""llama.cpp: the folder that its converter takes, and the GGUF files where a converter is given.

No embedding and no head lie in a block drafter's folder: with them the converter ties what is not tied, and every
draft is rejected, silently.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from data_specs.export import DRAFT_GGUF, TARGET_GGUF
from stages.export.capabilities import ExportError
from stages.export.layouts import STATES, block_layout, eagle3_layout
from stages.export.source import UNTOLD, DraftFacts, DraftSource, EngineLayout, ServeFacts

LAST_LINES = 12
SCRIPT = "convert_hf_to_gguf.py"


def plan(source: DraftSource) -> EngineLayout:
    """The folder that convert_hf_to_gguf.py takes with ``--target-model-dir``."""
    return eagle3_layout(source, (STATES,)) if source.facts.kind == "eagle3" else block_layout(source)


GREEDY = (
    "# llama.cpp drafts greedily, and the evaluation drew its drafts: evaluate.draft_sampling=greedy measures what is "
    "served here"
)


def note(known: ServeFacts) -> list[str]:
    """A comment beside the commands where the draft was evaluated in another way than llama.cpp drafts."""
    return [GREEDY] * (known.draft_sampling == "target")


def serve(facts: DraftFacts, target: str, folder: str, known: ServeFacts = UNTOLD) -> list[str]:
    """The commands that convert the draft in ``folder`` and ``target``, and serve both."""
    return [
        *note(known),
        f"python {SCRIPT} {folder} --target-model-dir {target} --outfile {folder}/{DRAFT_GGUF}",
        f"python {SCRIPT} {target} --outfile {folder}/{TARGET_GGUF}",
        serve_converted(facts, folder),
    ]


def serve_converted(facts: DraftFacts, folder: str) -> str:
    """The command that serves the two GGUF files in ``folder``."""
    options = f"--metrics --spec-type draft-{facts.kind} --spec-draft-n-max {facts.drafts}"
    return f"llama-server -m {folder}/{TARGET_GGUF} -md {folder}/{DRAFT_GGUF} {options}"


@dataclass(frozen=True)
class Converter:
    """llama.cpp's convert_hf_to_gguf.py, the interpreter that runs it, and the type of the numbers it writes."""

    script: Path
    python: str
    outtype: str


def script_at(given: str) -> Path:
    """The converter that ``export.converter`` names: the script itself, or a checkout of llama.cpp that has it.

    Raises ``ExportError`` where there is none.
    """
    path = Path(given).expanduser()
    script = path / SCRIPT if path.is_dir() else path
    if not script.is_file():
        raise ExportError(
            f"export.converter={script}: expected llama.cpp's {SCRIPT}, or its checkout; found no such file"
        )
    return script


def convert(converter: Converter, folder: Path, name: str, target: Path) -> None:
    """Write draft.gguf (of the draft ``name`` in ``folder``) and target.gguf (of ``target``) into ``folder``.

    Raises ``ExportError`` with the converter's last lines where it fails.
    """
    # Without a name the file would be called after the working folder.
    own = [str(folder), "--target-model-dir", str(target), "--model-name", name]
    _run(converter, own, folder / DRAFT_GGUF)
    _run(converter, [str(target)], folder / TARGET_GGUF)


def _run(converter: Converter, arguments: list[str], output: Path) -> None:
    """One run of the converter; its file appears under its name only when it is whole."""
    partial = output.with_name(f".{output.name}.tmp")
    command = [converter.python, str(converter.script), *arguments, "--outtype", converter.outtype]
    try:
        done = subprocess.run(
            [*command, "--outfile", str(partial)], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise ExportError(f"export.python={converter.python}: {error.strerror}") from error
    if done.returncode != 0 or not partial.is_file():
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-LAST_LINES:])
        raise ExportError(
            f"export.converter={converter.script}: {output.name}: it ended with {done.returncode} and wrote "
            f"{'something' if partial.is_file() else 'nothing'}:\n{said}"
        )
    partial.rename(output)
