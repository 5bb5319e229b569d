"""The group ``compare``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from omegaconf import MISSING

from pipeline.config.rules import ANY_NUMBER, EACH_ONCE, Name


@dataclass
class FigureConfig:
    """A figure of the accepted length against one key of the config, with one line for each drafter."""

    title: str = MISSING
    key: str = MISSING  # what is varied, for example drafter.depth
    # The range is that of ``key``: every variant is checked as a config of its own.
    values: Annotated[list[Annotated[int, ANY_NUMBER]], EACH_ONCE] = field(default_factory=list)
    drafters: Annotated[list[str], EACH_ONCE] = field(default_factory=list)  # some of compare.drafters
    latency: bool = False  # also measure what share of a draft step its left-to-right part takes


@dataclass
class CompareConfig:
    """Drafters trained on one cache with equal data and steps (stage=compare)."""

    name: Name = "drafters"  # the artifact is named after the target and this
    # name -> the overrides that make it, for example [drafter=dflash, drafter.depth=2]
    drafters: dict[str, list[str]] = field(default_factory=dict)
    # drafters of the main table; ratios are to the first
    table: Annotated[list[str], EACH_ONCE] = field(default_factory=list)
    table_overrides: list[str] = field(default_factory=list)  # only for the drafters of the table
    figures: dict[str, FigureConfig] = field(default_factory=dict)

    def contradictions(self) -> Iterator[str]:
        """Yield a message for each contradiction in ``compare``."""
        names = {"compare.table": self.table}
        names |= {
            f"compare.figures.{name}.drafters": figure.drafters for name, figure in self.figures.items()
        }
        values = {f"compare.figures.{name}.values": figure.values for name, figure in self.figures.items()}
        for key, listed in {**names, **values}.items():
            if not listed:
                yield f"{key}: expected at least one (see experiment=compare_drafters), got none"
        for key, drafters in names.items():
            for name in drafters:
                if name not in self.drafters:
                    yield f"{key}: expected some of compare.drafters={list(self.drafters)}, got {name}"
