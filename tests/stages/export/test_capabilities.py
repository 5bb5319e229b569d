"""What cannot be is refused with the reason and the nearest thing that works."""

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


@pytest.mark.parametrize("name,engine,reason,nearest", REFUSED)
def test_refusals(name: str, engine: str, reason: str, nearest: str) -> None:
    facts = facts_of(make(name).config)
    with pytest.raises(ExportError, match=f"export={engine}: .*{reason}.*; nearest: .*{nearest}"):
        check(engine, facts)


def test_every_limit_is_met_by_some_draft_or_stated() -> None:
    """A limit that nothing meets would be a typing error in the table."""
    every = [facts_of(make(name).config) for name in DRAFTS]
    unmet = [limit.reason for limit in LIMITS if not any(map(limit.holds, every))]
    assert unmet == [
        "its Gemma 4 reader has no reduced vocabulary (drafter.vocab_size)",
        "its reader of such layers does not cap the logits as the target does (final_logit_softcapping)",
        "it leaves out a scaling of the rotary positions in DSpark drafts (rope_parameters.rope_type)",
        "it has no Gemma 4 layer in Eagle3",
        "it takes Eagle3's residual before hidden_norm (norm_before_residual: true)",
    ], "met by other targets and by drafts of others only"
    assert all(set(limit.engines) <= set(ENGINES) for limit in LIMITS)
