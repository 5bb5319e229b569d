"""mlx-dspark reads native DSpark and DFlash. It checks tensor names strictly and numbers taps by layers."""

from __future__ import annotations

from stages.export.layouts import block_layout
from stages.export.source import UNTOLD, DraftFacts, DraftSource, EngineLayout, ServeFacts


def plan(source: DraftSource) -> EngineLayout:
    """The folder for ``--drafter``."""
    return block_layout(source)


def serve(facts: DraftFacts, target: str, folder: str, _known: ServeFacts = UNTOLD) -> list[str]:
    """The command that serves ``target`` with the draft in ``folder``, without quantising the draft to 4 bits."""
    return [f"mlx-dspark serve --mode {facts.kind} --model {target} --drafter {folder} --drafter-bits 0"]
