"""SGLang: DSpark with any head, 1+N DFlash, Eagle3 with a Llama layer and three taps, which it numbers by layers."""

from __future__ import annotations

from stages.export.layouts import LAYERS, block_layout, eagle3_layout
from stages.export.source import DraftFacts, DraftSource, EngineLayout


def plan(source: DraftSource) -> EngineLayout:
    """The folder that ``--speculative-draft-model-path`` names."""
    return eagle3_layout(source, (LAYERS,)) if source.facts.kind == "eagle3" else block_layout(source)


def serve(facts: DraftFacts, target: str, folder: str) -> list[str]:
    """The command that serves ``target`` with the draft in ``folder``; its draft tokens count the anchor too."""
    options = f"--speculative-algorithm {facts.kind.upper()} --speculative-draft-model-path {folder}"
    if facts.kind == "eagle3":
        options += f" --speculative-num-steps {facts.drafts} --speculative-eagle-topk 1"
    options += f" --speculative-num-draft-tokens {facts.drafts + 1}"
    return [f"python -m sglang.launch_server --model-path {target} {options}"]
