"""The names of the drafting algorithms and of the families of draft layers.

This module imports none of them, because the config is checked before torch is loaded. A new algorithm needs a file
beside this one (a subclass of ``Model``), a line here and a file in conf/drafter/. A new family needs a file in
families/ and a line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Algorithm:
    """The module and name of the class, and the keys of ``drafter`` whose values the algorithm fixes."""

    module: str
    name: str
    fixed: Mapping[str, object] = field(default_factory=dict)


NO_HEADS = {"markov_rank": 0, "confidence_head": False}
CHAIN = {**NO_HEADS, "depth": 1, "sample_from_anchor": True}

ALGORITHMS = {
    "dspark": Algorithm("pipeline.drafts.dspark", "DSpark"),
    "dflash": Algorithm("pipeline.drafts.dspark", "DSpark", NO_HEADS),
    "eagle3": Algorithm("pipeline.drafts.eagle3", "Eagle3", CHAIN),
    "mtp": Algorithm("pipeline.drafts.mtp", "MTP", {**CHAIN, "num_taps": 0}),
}


@dataclass(frozen=True)
class Family:
    """The module of the layers, and the ``model_type`` by which a draft's config.json names them."""

    module: str
    model_type: str


FAMILIES = {
    "qwen3": Family("pipeline.drafts.families.qwen3", "qwen3"),
    "gemma4": Family("pipeline.drafts.families.gemma4", "gemma4_text"),
    "llama": Family("pipeline.drafts.families.llama", "llama"),
}
