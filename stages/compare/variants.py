"""The variants of a comparison: the drafts to train, each with the whole config of its own run.

A drafter is a list of Hydra overrides (``compare.drafters``), so it may choose config groups. The table has one variant
per drafter, and a figure has one per drafter and value of its key. Variants that train the same draft are merged: if
the table's draft has depth 2, it also stands for depth 2 in a figure.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from data_specs.errors import UserError
from pipeline.config import Config, ConfigError, explained, resolve
from pipeline.config.rules import SAFE_NAME

Compose = Callable[
    [list[str]], DictConfig
]  # more overrides -> the composed config of the run with these added

# Variants may differ in these keys only, so that they are compared on equal data and steps.
FREE = (
    "stage", "compare", "drafter", "train.lr", "train.betas", "train.weight_decay", "train.warmup", "train.min_lr",
    "train.clip", "evaluate.prompts", "evaluate.baseline", "evaluate.chunk_prompts",
)  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """One draft of a comparison."""

    name: str  # its draft is named after it and the target
    overrides: tuple[str, ...]
    config: Config


@dataclass(frozen=True)
class Comparison:
    """Every variant once, in the order of training, and where each is shown, by name."""

    variants: dict[str, Variant]
    table: dict[str, str]  # drafter -> variant
    figures: dict[str, dict[str, list[str]]]  # figure -> drafter -> the variant of each value


def lay_out(config: Config, compose: Compose) -> Comparison:
    """All variants that ``config.compare`` asks for, each composed and checked.

    Raises ``ConfigError`` naming variant and key for an override that does not compose, for a contradiction between
    settings, and for a difference in data or steps.
    """
    compare = config.compare
    variants: dict[str, Variant] = {}
    # Composing takes a quarter of a second, so the variants of a figure are copies of one config.
    once = functools.cache(lambda overrides: compose(list(overrides)))

    def placed(drafter: str, name: str, more: list[str], values: dict[str, int]) -> str:
        """Add the variant, unless one that trains the same draft exists; returns the name of that variant."""
        new = _variant(config, name, (*compare.drafters[drafter], *more), values, once)
        made = _draft(new.config)
        same = next((name for name, other in variants.items() if _draft(other.config) == made), None)
        if same is None:
            variants[new.name] = new
        return same or new.name

    table = {drafter: placed(drafter, drafter, compare.table_overrides, {}) for drafter in compare.table}
    figures = {
        title: {
            drafter: [placed(drafter, f"{drafter}_{title}{v}", [], {figure.key: v}) for v in figure.values]
            for drafter in figure.drafters
        }
        for title, figure in compare.figures.items()
    }
    return Comparison(variants, table, figures)


@functools.cache
def composed_variants(task: tuple[str, ...]) -> Comparison:
    """``lay_out`` for the run whose Hydra overrides are ``task``; works only while Hydra runs it."""
    base = resolve(hydra.compose("config", list(task)))
    return lay_out(base, lambda more: hydra.compose("config", [*task, *more]))


def _draft(config: Config) -> dict[str, Any]:
    """All settings that affect the trained draft, without its name."""
    values = dataclasses.asdict(config)
    del values["evaluate"], values["drafter"]["name"]
    return values


def _variant(
    base: Config, name: str, overrides: tuple[str, ...], values: dict[str, int], compose: Any
) -> Variant:
    """The variant composed from ``overrides``, with ``values`` set at their keys."""
    every = (*overrides, *(f"{key}={value}" for key, value in values.items()))
    last = {item.partition("=")[0]: item for item in every}
    told = tuple(item for item in every if last[item.partition("=")[0]] == item)
    where = f"compare: variant {name} ({' '.join(told)})"
    if not SAFE_NAME.fullmatch(name):
        raise ConfigError(f"{where}: expected a name of letters, digits, dot, dash or underscore")
    try:
        cfg = copy.deepcopy(compose(overrides))
        for key, value in (values | {"drafter.name": name}).items():
            OmegaConf.update(cfg, key, value)
        config = resolve(cfg)
    except (UserError, HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"{where}: {explained(error, Config).splitlines()[0]}") from None
    _check_equal(base, config, where)
    return Variant(name, told, config)


def _check_equal(base: Config, config: Config, where: str) -> None:
    """Refuse a difference in any key that is not ``FREE``."""
    theirs = dict(_flat(dataclasses.asdict(config)))
    for key, value in _flat(dataclasses.asdict(base)):
        if theirs.get(key) != value and not any(key == free or key.startswith(f"{free}.") for free in FREE):
            raise ConfigError(
                f"{where}: {key}: expected {value} as in every variant (equal data, steps and prompts), "
                f"got {theirs.get(key)}"
            )


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of a nested dict."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
