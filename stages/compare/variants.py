"""The variants of a comparison: which drafts are trained, each with the whole config of a run of its own.

A drafter is a list of Hydra overrides (``compare.drafters``), so that it may choose config groups. The table has
one variant a drafter, a figure one for each drafter and value of its key. Variants that come to the same draft
are one: the depth 2 of a figure is the table's own where that has depth 2.
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
from pipeline.store.artifacts import NAME

Compose = Callable[[list[str]], DictConfig]  # the run's own overrides and these -> the composed config

# What the variants may differ in; all else is equal, or they would not be compared on equal data and steps.
FREE = (
    "stage", "compare", "drafter", "train.lr", "train.betas", "train.weight_decay", "train.warmup", "train.min_lr",
    "train.clip", "evaluate.prompts", "evaluate.baseline", "evaluate.chunk_prompts",
)  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """One draft of a comparison."""

    name: str  # with the target's name that of its draft
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

    Raises ``ConfigError`` that names the variant and the key: an override that cannot be, a contradiction in
    what it makes, a difference in data or steps.
    """
    compare = config.compare
    variants: dict[str, Variant] = {}
    # Composing takes a quarter of a second: a figure's variants are copies of one that differ in a value.
    once = functools.cache(lambda overrides: compose(list(overrides)))

    def placed(drafter: str, name: str, more: list[str], values: dict[str, int]) -> str:
        overrides = (*compare.drafters[drafter], *more)
        return _add(variants, _variant(config, name, overrides, values, once))

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
    """``lay_out`` of the run whose Hydra overrides are ``task``. To be called while Hydra runs it."""
    base = resolve(hydra.compose("config", list(task)))
    return lay_out(base, lambda more: hydra.compose("config", [*task, *more]))


def _add(variants: dict[str, Variant], variant: Variant) -> str:
    """The name of the variant that makes the same draft as ``variant``, which is added where there is none."""
    made = _draft(variant.config)
    same = next((name for name, other in variants.items() if _draft(other.config) == made), None)
    if same is None:
        variants[variant.name] = variant
    return same or variant.name


def _draft(config: Config) -> dict[str, Any]:
    """All that decides what draft comes out, without its name."""
    values = dataclasses.asdict(config)
    del values["evaluate"], values["drafter"]["name"]
    return values


def _variant(
    base: Config, name: str, overrides: tuple[str, ...], values: dict[str, int], compose: Any
) -> Variant:
    """The variant that ``overrides`` compose, with ``values`` at their keys."""
    told = _last(*overrides, *(f"{key}={value}" for key, value in values.items()))
    where = f"compare: variant {name} ({' '.join(told)})"
    if not NAME.fullmatch(name):
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


def _last(*overrides: str) -> tuple[str, ...]:
    """``overrides`` without those whose key comes again."""
    last = {item.partition("=")[0]: item for item in overrides}
    return tuple(item for item in overrides if last[item.partition("=")[0]] == item)


def _check_equal(base: Config, config: Config, where: str) -> None:
    """Refuse a difference in anything that is not ``FREE``."""
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
