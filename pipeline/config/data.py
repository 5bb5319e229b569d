"""The group ``data``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from omegaconf import MISSING

from pipeline.config.rules import Count, Name, Share, one_of


@dataclass
class SourceConfig:
    """One source of prompts: a file, a folder of files, or a Hub data set (see pipeline/prompts/sources.py)."""

    path: str = MISSING
    subset: str | None = None
    split: str = "train"
    revision: str | None = None
    limit: Count | None = None  # rows that are read at most


@dataclass
class DataConfig:
    """Prompts, and how they are split by a stable hash of the prompt."""

    name: Name = MISSING
    sources: list[SourceConfig] = field(default_factory=list)
    heldout: Share = 0.02  # share of prompts kept for held-out loss and calibration
    benchmark: Share = 0.0  # share of prompts never cached, kept for evaluation
    max_prompts: Count | None = None
    # rows in which a user (or system, or tool) wrote a control token of the target, such as <|im_end|>
    control_tokens: Annotated[str, one_of("keep", "reject")] = "keep"

    def contradictions(self, reads_sources: bool) -> Iterator[str]:
        """Yield a message for each contradiction in ``data``. With ``reads_sources``, the run needs the sources."""
        if self.heldout + self.benchmark >= 1:
            yield (
                f"data.heldout={self.heldout} and data.benchmark={self.benchmark}: expected a sum below 1, because the "
                "training data is what is left"
            )
        if reads_sources and not self.sources:
            yield "data.sources: expected at least one source of prompts, got none"
