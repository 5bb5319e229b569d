"""Ranges and choices of single fields; every numeric field has one."""

import dataclasses
from collections.abc import Iterable, Iterator
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from composing import composed

from data_specs.target_cache import CODECS, ITEM_BYTES, LOGITS
from pipeline import __main__ as entry
from pipeline.config import Config, ConfigError, ExportConfig, whole
from pipeline.config.rules import Rule, check_fields
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


def test_every_step_of_a_stage_can_run():
    assert set(whole.STEPS) == set(entry.STEPS)


@pytest.mark.parametrize(
    "key,value",
    [
        ("target.dtype", "int8"),
        ("target.taps", "[-2]"),
        ("target.taps", "[]"),
        ("target.taps", "[1,1]"),
        ("data.heldout", "-0.1"),
        ("data.max_prompts", "0"),
        ("answers.source", "vllm"),
        ("answers.temperature", "-1"),
        ("answers.repetition_penalty", "0"),
        ("answers.presence_penalty", "3"),
        ("answers.openai.retries", "-1"),
        ("answers.openai.timeout", "0"),
        ("answers.openai.concurrency", "0"),
        ("capture.max_length", "1"),
        ("capture.codec", "gzip"),
        ("drafter.algorithm", "magic"),
        ("drafter.family", "mamba"),
        ("drafter.block_size", "0"),
        ("drafter.num_taps", "-1"),
        ("drafter.vocab_size", "1"),
        ("drafter.markov_head", "magic"),
        ("drafter.confidence_label", "hard"),
        ("drafter.train_steps", "0"),
        ("drafter.loss.ce", "-0.1"),
        ("drafter.loss.ce_start", "-0.1"),
        ("drafter.loss.decay", "0"),
        ("drafter.loss.ramp", "[0.6,0.2]"),
        ("drafter.loss.ramp", "[0.6]"),
        ("drafter.init.bigram", "0"),
        ("train.epochs", "0"),
        ("train.micro_batch", "0"),
        ("train.lr", "0"),
        ("train.lr", "nan"),
        ("train.lr", "inf"),
        ("train.clip", "0"),
        ("train.betas", "[0.9]"),
        ("train.betas", "[0.9,1]"),
        ("train.weight_decay", "-0.1"),
        ("train.warmup", "1.1"),
        ("deepspeed.stage", "4"),
        ("evaluate.prompts", "0"),
        ("evaluate.temperature", "-1"),
        ("evaluate.top_p", "0"),
        ("evaluate.top_p", "1.5"),
        ("evaluate.top_k", "0"),
        ("evaluate.min_p", "1.5"),
        ("evaluate.threshold", "1.5"),
        ("evaluate.bootstrap", "0"),
        ("evaluate.calibration_prompts", "0"),
        ("evaluate.profile_contexts", "[]"),
        ("evaluate.benchmarks", "[gsm8k,gsm8k]"),
        ("study.policies", "[fixed,fixed]"),
        ("study.policies", "[fixed_x]"),
        ("study.policies", "[fast]"),
        ("export.formats", "[vllm,vllm]"),
        ("study.concurrencies", "[0]"),
        ("study.arrivals", "[0]"),
        ("client.backoff", "-1"),
        ("tracking.mode", "loud"),
        ("stage.steps", "[trian]"),
    ],
)
def test_a_value_out_of_its_range_is_named_by_its_key(key: str, value: str):
    with pytest.raises(ConfigError) as error:
        composed(f"{key}={value}")
    found, _, message = str(error.value).partition(":")
    assert found.partition("[")[0] == key
    assert ", got " in message


@pytest.mark.parametrize(
    "changes",
    [{"ranks": 0}, {"seed": -1}, {"seed": 2**32}, {"engine": "sglang"}, {"export": ExportConfig(["onnx"])}],
)
def test_a_root_key_out_of_its_range_is_named(changes: dict):
    (key,) = changes
    with pytest.raises(ConfigError, match=f"^{key}"):
        check_fields(dataclasses.replace(composed(), **changes))


def test_elements_are_named_by_their_place():
    with pytest.raises(ConfigError, match=r"^data.sources\[1\].limit: .* got 0$"):
        composed("data.sources=[{path: a.jsonl}, {path: b.jsonl, limit: 0}]")
    with pytest.raises(ConfigError, match=r"^evaluate.benchmarks\[1\]: .* got 'gsm9k'$"):
        composed("evaluate.benchmarks=[gsm8k,gsm9k]")


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_the_ends_of_a_range_are_in_it(seed: int):
    check_fields(dataclasses.replace(composed(), seed=seed, ranks=1))
    assert composed("train.warmup=1", "train.min_lr=0", "evaluate.top_p=1").train.warmup == 1
