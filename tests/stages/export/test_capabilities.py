"""What cannot be is refused with the reason and the nearest thing that works."""

from typing import Any

import pytest
from tiny_exports import DRAFTS, make

from stages.export.capabilities import ENGINES, LIMITS, ExportError, check
from stages.export.source import facts_of

REFUSED = [
    ("dspark_gated", "vllm", "only the vanilla Markov head", "export=sglang"),
    ("dspark_rnn", "llama_cpp", "only the vanilla Markov head", "drafter.markov_head=vanilla"),
    ("dspark_learned_start", "sglang", "no engine has a learned start", "drafter.learned_start=false"),
    ("dspark_no_markov", "llama_cpp", "confidence_head_with_markov: false", "drafter.confidence_head=false"),
    ("dspark_rank_8", "mlx", "multiple of 64", "drafter.markov_rank=64"),
    ("dspark_llama", "vllm", "Llama layers in a block drafter", "drafter.family=qwen3"),
    ("dspark_gemma4", "llama_cpp", "no Gemma 4 layers", "export=vllm"),
    ("dflash_reduced", "sglang", "target's whole head", "export=vllm"),
    (
        "dflash_fill_in_reduced",
        "llama_cpp",
        "target's whole head for a 1\\+N DFlash",
        "drafter.vocab_size=null",
    ),
    ("eagle3", "mlx", "no Eagle3", "export=vllm"),
    ("eagle3", "llama_cpp", "Llama layer only", "drafter=eagle3_llama"),
    ("eagle3_llama_window", "llama_cpp", "no sliding window", "export=vllm"),
    ("mtp", "vllm", "no engine reads an MTP module of its own", "drafter=dspark"),
]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "rope_theta": 10000.0}
# Drafts for other targets, and of others: fields of the config, changed.
OTHERS = [
    ("dspark_gemma4", {"draft_vocab_size": 89}, "vllm", "no reduced vocabulary", "drafter.vocab_size=null"),
    ("dspark", {"final_logit_softcapping": 30.0}, "sglang", "does not cap the logits", "export=mlx"),
    ("dspark", {"rope_parameters": YARN | {"rope_type": "dynamic"}}, "llama_cpp", "rope_type", "export=vllm"),
    ("dspark", {"rope_parameters": YARN}, "mlx", "such a scaling of the rotary positions", "export=vllm"),
    (
        "dflash_fill_in",
        {"rope_parameters": YARN | {"rope_type": "longrope"}},
        "mlx",
        "such a scaling of the rotary positions",
        "export=llama_cpp",
    ),
    (
        "eagle3",
        {"model_type": "gemma4_text"},
        "speculators",
        "no Gemma 4 layer in Eagle3",
        "drafter.family=llama",
    ),
    ("eagle3_llama", {"norm_before_residual": True}, "sglang", "before hidden_norm", "export=llama_cpp"),
]


def changed(name: str, fields: dict[str, Any]) -> Any:
    config = make(name).config
    for field, value in fields.items():
        setattr(config, field, value)
    return config


@pytest.mark.parametrize("name,engine,reason,nearest", REFUSED)
def test_refusals(name: str, engine: str, reason: str, nearest: str) -> None:
    facts = facts_of(make(name).config)
    with pytest.raises(ExportError, match=f"export={engine}: .*{reason}.*; nearest: .*{nearest}"):
        check(engine, facts)


@pytest.mark.parametrize("name,fields,engine,reason,nearest", OTHERS)
def test_refusals_of_drafts_for_other_targets(
    name: str, fields: dict[str, Any], engine: str, reason: str, nearest: str
) -> None:
    with pytest.raises(ExportError, match=f"export={engine}: .*{reason}.*; nearest: .*{nearest}"):
        check(engine, facts_of(changed(name, fields)))


def test_every_limit_is_met_by_some_draft() -> None:
    """A limit that nothing meets would be a typing error in the table."""
    every = [facts_of(make(name).config) for name in DRAFTS]
    every += [facts_of(changed(name, fields)) for name, fields, *_ in OTHERS]
    assert [limit.reason for limit in LIMITS if not any(map(limit.holds, every))] == []
    assert all(set(limit.engines) <= set(ENGINES) for limit in LIMITS)
