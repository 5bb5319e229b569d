"""Configs of draft layers for the tests of pipeline/drafts/families."""

import tiny
import tiny_targets
import torch

from pipeline.config import DrafterConfig
from pipeline.drafts import registry
from pipeline.drafts.families.attention import sdpa


def config(family: str, target: object = None, **changes: object):
    drafter = DrafterConfig(
        name="dflash", algorithm="dflash", depth=2, markov_rank=0, family=family, **changes
    )
    return registry.draft_config(drafter, target or tiny.target_config(), tiny.VOCABULARY, [0, 2], 260)


def unified() -> object:
    """A Gemma 4 target whose full-attention layers use one projection for keys and values."""
    return tiny_targets.gemma4_unified().config.get_text_config()


def attend_itself(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    return sdpa(q, k, v, None, scale)
