"""What cannot be is refused with the reason and the nearest thing that works."""

from typing import Any

import pytest
from tiny_errors import refused
from tiny_exports import DRAFTS, make

from stages.export.capabilities import ENGINES, LIMITS, ExportError, check
from stages.export.source import facts_of

# The export, and the keys that its refusal names: what is at fault, and what works instead.
REFUSED = [
    ("dspark_gated", "vllm", "drafter.markov_head", "export=sglang"),
    ("dspark_rnn", "llama_cpp", "drafter.markov_head", "drafter.markov_head=vanilla"),
    ("dspark_learned_start", "sglang", "drafter.learned_start", "drafter.learned_start=false"),
    ("dspark_no_markov", "llama_cpp", "confidence_head_with_markov: false", "drafter.confidence_head=false"),
    ("dspark_rank_8", "mlx", "drafter.markov_rank", "drafter.markov_rank=64"),
    ("dspark_llama", "vllm", "drafter.family", "drafter.family=qwen3"),
    ("dspark_gemma4", "llama_cpp", "drafter.family", "export=vllm"),
    ("dflash_reduced", "sglang", "drafter.vocab_size", "export=vllm"),
    ("dflash_fill_in_reduced", "llama_cpp", "drafter.vocab_size", "drafter.vocab_size=null"),
    ("eagle3", "mlx", "Eagle3", "export=vllm"),
    ("eagle3", "llama_cpp", "drafter.family", "drafter=eagle3_llama"),
    ("eagle3_llama_window", "llama_cpp", "drafter.sliding_window", "export=vllm"),
    ("mtp", "vllm", "MTP", "drafter=dspark"),
]
ROPE = "rope_parameters.rope_type"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "rope_theta": 10000.0}
# Drafts for other targets, and of others: fields of the config, changed.
OTHERS = [
    ("dspark_gemma4", {"draft_vocab_size": 89}, "vllm", "drafter.vocab_size", "drafter.vocab_size=null"),
    ("dspark", {"final_logit_softcapping": 30.0}, "sglang", "final_logit_softcapping", "export=mlx"),
    ("dspark", {"rope_parameters": YARN | {"rope_type": "dynamic"}}, "llama_cpp", ROPE, "export=vllm"),
    ("dspark", {"rope_parameters": YARN}, "mlx", ROPE, "export=vllm"),
    (
        "dflash_fill_in",
        {"rope_parameters": YARN | {"rope_type": "longrope"}},
        "mlx",
        ROPE,
        "export=llama_cpp",
    ),
    ("eagle3", {"model_type": "gemma4_text"}, "speculators", "drafter.family", "drafter.family=llama"),
    ("eagle3_llama", {"norm_before_residual": True}, "sglang", "norm_before_residual", "export=llama_cpp"),
]


def changed(name: str, fields: dict[str, Any]) -> Any:
    config = make(name).config
    for field, value in fields.items():
        setattr(config, field, value)
    return config


@pytest.mark.parametrize("name,engine,fault,nearest", REFUSED)
def test_refusals(name: str, engine: str, fault: str, nearest: str) -> None:
    facts = facts_of(make(name).config)
    with refused(ExportError, f"export={engine}", fault, nearest):
        check(engine, facts)


@pytest.mark.parametrize("name,fields,engine,fault,nearest", OTHERS)
def test_refusals_of_drafts_for_other_targets(
    name: str, fields: dict[str, Any], engine: str, fault: str, nearest: str
) -> None:
    with refused(ExportError, f"export={engine}", fault, nearest):
        check(engine, facts_of(changed(name, fields)))


def test_every_limit_is_met_by_some_draft() -> None:
    """A limit that nothing meets would be a typing error in the table."""
    every = [facts_of(make(name).config) for name in DRAFTS]
    every += [facts_of(changed(name, fields)) for name, fields, *_ in OTHERS]
    assert [limit.reason for limit in LIMITS if not any(map(limit.holds, every))] == []
    assert all(set(limit.engines) <= set(ENGINES) for limit in LIMITS)
