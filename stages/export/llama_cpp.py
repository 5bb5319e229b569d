"""llama.cpp: the folder that its converter takes, and the GGUF files where a converter is given.

No embedding and no head lie in a block drafter's folder: with them the converter ties what is not tied, and every
draft is rejected, silently.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from data_specs.export import DRAFT_GGUF, TARGET_GGUF
from stages.export.capabilities import ExportError
from stages.export.layouts import STATES, block_layout, eagle3_layout
from stages.export.source import Facts, Layout, Source

OUTTYPES = ("auto", "f32", "bf16", "f16")
LAST_LINES = 12


def plan(source: Source) -> Layout:
    """The folder that convert_hf_to_gguf.py takes with ``--target-model-dir``."""
    return eagle3_layout(source, (STATES,)) if source.facts.kind == "eagle3" else block_layout(source)


def serve(facts: Facts, target: str, folder: str) -> list[str]:
    """The commands that convert the draft in ``folder`` and ``target``, and serve both."""
    draft, whole = f"{folder}/{DRAFT_GGUF}", f"{folder}/{TARGET_GGUF}"
    convert = "python convert_hf_to_gguf.py"
    if not Path(draft).is_file():
        made = [
            f"{convert} {folder} --target-model-dir {target} --outfile {draft}",
            f"{convert} {target} --outfile {whole}",
        ]
    else:
        made = []
    options = f"--spec-type draft-{facts.kind} --spec-draft-n-max {facts.drafts}"
    return [*made, f"llama-server -m {whole} -md {draft} {options}"]


def convert(converter: Path, folder: Path, target: Path, outtype: str) -> None:
    """Write draft.gguf (of the draft in ``folder``) and target.gguf (of ``target``) into ``folder``.

    Raises ``ExportError`` with the converter's last lines where it fails, or where there is none.
    """
    if not converter.is_file():
        raise ExportError(
            f"export.converter={converter}: expected llama.cpp's convert_hf_to_gguf.py, found no such file"
        )
    shared = ["--outtype", outtype]
    _run(converter, [str(folder), "--target-model-dir", str(target), *shared], folder / DRAFT_GGUF)
    _run(converter, [str(target), *shared], folder / TARGET_GGUF)


def _run(converter: Path, arguments: list[str], output: Path) -> None:
    """One run of the converter; its file appears under its name only when it is whole."""
    partial = output.with_name(f".{output.name}.tmp")
    command = [sys.executable, str(converter), *arguments, "--outfile", str(partial)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not partial.is_file():
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-LAST_LINES:])
        raise ExportError(
            f"export.converter={converter}: {output.name}: it ended with {done.returncode} and wrote "
            f"{'something' if partial.is_file() else 'nothing'}:\n{said}"
        )
    partial.rename(output)
