"""What a rule lets through, how a broken one is named, and that every numeric field has one."""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from data_specs.target_cache import CODECS, ITEM_BYTES, LOGITS
from pipeline.config import Config, ConfigError
from pipeline.config.rules import (
    EACH_ONCE,
    NOT_EMPTY,
    PAIR,
    Count,
    Rule,
    Share,
    above,
    at_least,
    between,
    check_fields,
    one_of,
)
from pipeline.drafts.families.attention import BACKENDS
from pipeline.drafts.heads import HEADS
from pipeline.target.files import DTYPES
from stages.served.engines import ENGINES


def numeric_fields(kind: Any, prefix: str = "") -> Iterator[tuple[str, list[Rule]]]:
    """(key, rules) of every number in the dataclass ``kind``: fields, elements of lists, values of dicts."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        yield from numbers_in(hint, f"{prefix}{name}")


def numbers_in(hint: Any, key: str, rules: tuple[Any, ...] = ()) -> Iterator[tuple[str, list[Rule]]]:
    if dataclasses.is_dataclass(hint):
        yield from numeric_fields(hint, f"{key}.")
    elif hint in (int, float):
        yield key, [rule for rule in rules if isinstance(rule, Rule)]
    elif get_origin(hint) is Annotated:
        yield from numbers_in(get_args(hint)[0], key, hint.__metadata__)
    elif get_origin(hint) in (list, dict) or isinstance(hint, UnionType) or get_args(hint):
        for part in get_args(hint):
            yield from numbers_in(part, key)


def test_every_number_has_a_range_or_is_marked_as_any_number():
    fields = dict(numeric_fields(Config))
    assert {"seed", "train.lr", "drafter.loss.decay", "compare.figures.values", "train.betas"} <= set(fields)
    assert [key for key, rules in fields.items() if not rules] == []


@pytest.mark.parametrize(
    "key,made",
    [
        ("target.dtype", ITEM_BYTES),
        ("target.dtype", DTYPES),
        ("capture.codec", CODECS),
        ("capture.logits", LOGITS),
        ("drafter.markov_head", HEADS),
        ("train.attention", ["auto", *BACKENDS]),
        ("engine", ENGINES),
    ],
)
def test_the_choices_of_a_field_are_those_that_the_code_has(key: str, made: Iterable[str]):
    """The config is checked without importing torch, so that it cannot read them where they are made."""
    kind: Any = Config
    for name in key.split("."):
        kind = get_type_hints(kind, include_extras=True)[name]
    rule = next(part for part in (kind, *get_args(kind)) if get_origin(part) is Annotated).__metadata__[0]
    assert sorted(rule.expected.removeprefix("one of ").split(", ")) == sorted(made)


@pytest.mark.parametrize(
    "rule,inside,outside",
    [
        (at_least(2), [2, 2.5, 1e300], [1, 1.999, math.inf, math.nan]),
        (above(0), [1e-300, 3], [0, -1, math.inf, math.nan]),
        (between(-2, 2), [-2, 0, 2], [-2.001, 2.001, math.inf, math.nan]),
        (one_of("a", 3), ["a", 3], ["b", "", 4, "3"]),
        (NOT_EMPTY, [[0]], [[]]),
        (EACH_ONCE, [[], [1, 2]], [[1, 2, 1]]),
        (PAIR, [[0, 0]], [[0], [0, 0, 0]]),
    ],
)
def test_the_ends_of_a_rule(rule: Rule, inside: list, outside: list):
    assert [value for value in inside if not rule.holds(value)] == []
    assert [value for value in outside if rule.holds(value)] == []


@dataclasses.dataclass
class Inner:
    count: Count = 1


@dataclasses.dataclass
class Outer:
    pair: Annotated[list[Share], PAIR] | None = None
    inner: list[Inner] = dataclasses.field(default_factory=list)
    named: dict[str, Inner] = dataclasses.field(default_factory=dict)
    own: Inner = dataclasses.field(default_factory=Inner)


def test_all_broken_rules_are_named_at_once():
    with pytest.raises(ConfigError) as error:
        check_fields(Outer(pair=[0.5], inner=[Inner(0), Inner(1), Inner(-1)]))
    keys = [line.split(":")[0] for line in str(error.value).splitlines()[1:]]
    assert keys == ["  1. pair", "  2. inner[0].count", "  3. inner[2].count"]


@pytest.mark.parametrize(
    "values,key,got",
    [
        (Outer(pair=[0.5]), "pair", "[0.5]"),
        (Outer(pair=[0.5, 1.5]), "pair[1]", "1.5"),
        (Outer(inner=[Inner(), Inner(0)]), "inner[1].count", "0"),
        (Outer(named={"a": Inner(-1)}), "named.a.count", "-1"),
        (Outer(own=Inner(0)), "own.count", "0"),
    ],
)
def test_a_broken_rule_is_named_by_its_place(values: Outer, key: str, got: str):
    check_fields(Outer(pair=[0.0, 1.0], inner=[Inner()], named={"a": Inner()}))
    with pytest.raises(ConfigError) as error:
        check_fields(values, "top.")
    assert str(error.value).startswith(f"top.{key}: ") and str(error.value).endswith(f" got {got}")
