"""The limits of each engine in one table, so that every refusal gives its reason and an alternative.

Sources: the code of vLLM 0.32, SGLang 0.5.23, llama.cpp (of llama-cpp-python 0.3.36), mlx-dspark 0.20.3 and speculators
0.9.0, and the runs of docs/engines.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from data_specs.errors import UserError
from stages.export.source import DraftFacts

ENGINES = ("vllm", "sglang", "llama_cpp", "mlx", "speculators")
MLX_ROPES = {"dspark": ("default",), "dflash": ("default", "linear", "llama3", "yarn")}


class ExportError(UserError):
    """A draft that a format does not support, or an export that failed."""


@dataclass(frozen=True)
class Limit:
    """``engines`` do not support drafts for which ``holds`` is True. ``nearest`` is what works instead."""

    engines: tuple[str, ...]
    holds: Callable[[DraftFacts], bool]
    reason: str
    nearest: str


LIMITS = (
    Limit(ENGINES, lambda f: f.kind == "mtp",
        "no engine reads a separate MTP module; they read only one inside a target's checkpoint",
        "train drafter=dspark or drafter=eagle3_llama on the same cache (export=hub publishes the MTP draft as it is)"),
    Limit(ENGINES, lambda f: f.learned_start,
        "no engine has a learned start state (drafter.learned_start)",
        "train with drafter.learned_start=false; export=sglang reads drafter.markov_head=rnn"),
    Limit(("vllm", "llama_cpp", "mlx"), lambda f: f.head in ("gated", "rnn"),
        "its reader has only the vanilla Markov head (drafter.markov_head)",
        "export=sglang reads gated and rnn heads, or train with drafter.markov_head=vanilla"),
    Limit(("llama_cpp",), lambda f: f.confidence and not f.confidence_with_markov,
        "its confidence head always reads [hidden state; Markov embedding] (confidence_head_with_markov: false)",
        "export=vllm or export=sglang, or train with drafter.markov_rank > 0 or drafter.confidence_head=false"),
    Limit(("mlx",), lambda f: f.is_block and f.rank % 64 != 0,
        "it quantises in groups of 64: the rank of the Markov head must be a multiple of 64 (drafter.markov_rank)",
        "train with drafter.markov_rank=64 or 256; export=vllm and export=llama_cpp take any rank"),
    Limit(ENGINES, lambda f: f.is_block and f.family == "llama",
        "no engine has Llama layers in a block drafter (drafter.family): they norm queries and keys over the head",
        "train with drafter.family=qwen3"),
    Limit(("sglang", "llama_cpp", "speculators"), lambda f: f.is_block and f.family == "gemma4",
        "it has no Gemma 4 layers in a draft (drafter.family)",
        "export=vllm or export=mlx, or train with drafter.family=qwen3"),
    Limit(("vllm", "mlx"), lambda f: f.family == "gemma4" and f.kind == "dflash",
        "it has Gemma 4 layers only in DSpark's layout",
        "train with drafter.sample_from_anchor=true (exported with a Markov head of zeros), or drafter.family=qwen3"),
    Limit(("mlx",), lambda f: f.family == "gemma4" and (f.rope != "proportional" or f.window or not f.anchor_first),
        "its Gemma 4 layers have Gemma 4's own rotary positions, no sliding window, and draft from the anchor's slot",
        "export=vllm, or train with drafter.family=qwen3"),
    Limit(("vllm",), lambda f: f.family == "gemma4" and f.reduced,
        "its Gemma 4 reader has no reduced vocabulary (drafter.vocab_size)",
        "train with drafter.vocab_size=null, or drafter.family=qwen3"),
    Limit(("vllm", "sglang", "speculators"), lambda f: f.family != "gemma4" and f.softcap is not None,
        "its reader of such layers does not cap the logits as the target does (final_logit_softcapping)",
        "train with drafter.family=gemma4 and export=vllm, or export=mlx or export=llama_cpp"),
    Limit(("sglang",), lambda f: f.is_block and f.reduced,
        "it uses the target's whole head for a block drafter (drafter.vocab_size)",
        "train with drafter.vocab_size=null, or export=vllm"),
    Limit(("llama_cpp", "mlx"), lambda f: f.kind == "dflash" and f.reduced,
        "it uses the target's whole head for a 1+N DFlash (drafter.vocab_size)",
        "train with drafter.vocab_size=null, or export=vllm"),
    Limit(("mlx",), lambda f: f.is_block and f.family != "gemma4" and f.rope not in MLX_ROPES[f.kind],
        "it ignores this scaling of the rotary positions (rope_parameters.rope_type)",
        "export=vllm or export=llama_cpp"),
    Limit(("llama_cpp",), lambda f: f.rope == "dynamic",
        "its converter ignores dynamic rotary positions (rope_parameters.rope_type)",
        "export=vllm, or train with drafter.rope_scaling={rope_type: yarn, factor: ...}"),
    Limit(("mlx",), lambda f: f.kind == "eagle3", "it has no Eagle3",
        "train drafter=dspark with drafter.markov_rank=64, or export=vllm"),
    Limit(("vllm", "sglang", "llama_cpp", "speculators"), lambda f: f.kind == "eagle3" and f.family == "gemma4",
        "it has no Gemma 4 layer in Eagle3 (drafter.family)",
        "train with drafter.family=llama"),
    Limit(("sglang", "llama_cpp"), lambda f: f.kind == "eagle3" and f.family != "llama",
        "it reads Eagle3 with a Llama layer only (drafter.family)",
        "export=vllm reads this one, or train drafter=eagle3_llama"),
    Limit(("sglang", "llama_cpp"), lambda f: f.kind == "eagle3" and len(f.taps) != 3,
        "it reads Eagle3 with exactly three taps (drafter.num_taps)",
        "export=vllm reads this one, or train drafter=eagle3_llama"),
    Limit(("sglang",), lambda f: f.kind == "eagle3" and f.norm_before_residual,
        "it takes Eagle3's residual before hidden_norm (norm_before_residual: true)",
        "export=vllm or export=llama_cpp"),
    Limit(("sglang", "llama_cpp"), lambda f: f.kind == "eagle3" and f.window,
        "it reads no sliding window in Eagle3's config (drafter.sliding_window)",
        "export=vllm, or train with drafter.sliding_window=null"),
)  # fmt: skip


def refusal(engine: str, facts: DraftFacts) -> str | None:
    """Why ``engine`` does not support such a draft, and what works instead; None if it does."""
    for limit in LIMITS:
        if engine in limit.engines and limit.holds(facts):
            return f"{limit.reason}; nearest: {limit.nearest}"
    return None


def check(engine: str, facts: DraftFacts) -> None:
    """Raise ``ExportError`` with the reason if ``engine`` does not support such a draft."""
    if engine in ENGINES and (reason := refusal(engine, facts)):
        raise ExportError(f"export={engine}: {reason}")
