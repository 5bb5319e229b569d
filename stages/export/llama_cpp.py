"""llama.cpp: the folder for its converter, and the GGUF files if a converter is given.

The folder of a block drafter has no embedding and no head, because the converter would tie them, which is wrong, and
without any message all drafts would be rejected.
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
    """The folder for convert_hf_to_gguf.py with ``--target-model-dir``."""
    return eagle3_layout(source, (STATES,)) if source.facts.kind == "eagle3" else block_layout(source)


def note(known: ServeFacts) -> list[str]:
    """A comment for the commands if the draft was evaluated with sampled drafts; else nothing."""
    text = (
        "# llama.cpp drafts greedily, but the evaluation sampled its drafts. evaluate.draft_sampling=greedy measures "
        "what is served here."
    )
    return [text] if known.draft_sampling == "target" else []


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
    """llama.cpp's convert_hf_to_gguf.py, the interpreter that runs it, and the type of the numbers that it writes."""

    script: Path
    python: str
    outtype: str


def script_at(given: str) -> Path:
    """The converter at ``export.converter``, which is the script itself or a checkout of llama.cpp.

    Raises ``ExportError`` if there is none.
    """
    path = Path(given).expanduser()
    script = path / SCRIPT if path.is_dir() else path
    if not script.is_file():
        raise ExportError(
            f"export.converter={script}: expected {SCRIPT} or a llama.cpp checkout, found no file"
        )
    return script


def convert(converter: Converter, folder: Path, name: str, target: Path) -> None:
    """Convert the draft ``name`` in ``folder`` and ``target``, and write draft.gguf and target.gguf into ``folder``.

    If the converter fails, ``ExportError`` has its last lines.
    """
    # Without a name the file would be called after the working folder.
    own = [str(folder), "--target-model-dir", str(target), "--model-name", name]
    _run(converter, own, folder / DRAFT_GGUF)
    _run(converter, [str(target)], folder / TARGET_GGUF)


def _run(converter: Converter, arguments: list[str], output: Path) -> None:
    """Run the converter once. A rename gives the whole file its name."""
    partial = output.with_name(f".{output.name}.tmp")
    options = ["--outtype", converter.outtype, "--outfile", str(partial)]
    command = [converter.python, str(converter.script), *arguments, *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ExportError(f"export.python={converter.python}: {error.strerror}") from error
    if done.returncode != 0 or not partial.is_file():
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-LAST_LINES:])
        wrote = "a file" if partial.is_file() else "no file"
        raise ExportError(
            f"export.converter={converter.script}: {output.name}: exit code {done.returncode}, {wrote}:\n{said}"
        )
    partial.rename(output)
