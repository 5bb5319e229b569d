"""vLLM reads native DSpark and DFlash, and Eagle3 with a Llama or a Qwen3 layer."""

from __future__ import annotations

from stages.export.layouts import STATES, block_layout, eagle3_layout
from stages.export.serve import speculative_config
from stages.export.source import UNTOLD, DraftFacts, DraftSource, EngineLayout, ServeFacts


def plan(source: DraftSource) -> EngineLayout:
    """The folder for ``--speculative-config``."""
    return eagle3_layout(source, (STATES,)) if source.facts.kind == "eagle3" else block_layout(source)


def serve(facts: DraftFacts, target: str, folder: str, known: ServeFacts = UNTOLD) -> list[str]:
    """The command that serves ``target`` with the draft in ``folder``. DSpark needs vLLM's second runner."""
    options = speculative_config(facts.kind, folder, facts.drafts, known.draft_sampling)
    runner = "VLLM_USE_V2_MODEL_RUNNER=1 " if facts.kind == "dspark" else ""
    return [f"{runner}vllm serve {target} --speculative-config '{options}'"]
