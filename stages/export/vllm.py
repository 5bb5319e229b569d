"""vLLM: DSpark and DFlash native, Eagle3 with a Llama or a Qwen3 layer."""

from __future__ import annotations

import json

from stages.export.layouts import STATES, block_layout, eagle3_layout
from stages.export.source import DraftFacts, DraftSource, EngineLayout


def plan(source: DraftSource) -> EngineLayout:
    """The folder that ``--speculative-config`` names."""
    return eagle3_layout(source, (STATES,)) if source.facts.kind == "eagle3" else block_layout(source)


def serve(facts: DraftFacts, target: str, folder: str) -> list[str]:
    """The command that serves ``target`` with the draft in ``folder``. DSpark needs vLLM's second runner."""
    options = {"method": facts.kind, "model": folder, "num_speculative_tokens": facts.drafts}
    runner = "VLLM_USE_V2_MODEL_RUNNER=1 " if facts.kind == "dspark" else ""
    return [f"{runner}vllm serve {target} --speculative-config '{json.dumps(options)}'"]
