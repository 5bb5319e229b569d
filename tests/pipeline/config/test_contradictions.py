"""Values that cannot be together; the message names the keys."""

import dataclasses
import re

import pytest
from composing import composed

from pipeline.config import Config, ConfigError, check


@pytest.mark.parametrize(
    "overrides,keys",
    [
        (["target=hf"], ["target.path"]),
        (["target.gguf=null"], ["target.package", "target.gguf"]),
        (["target.tensor_parallel=2"], ["target.tensor_parallel=2", "answers=hf"]),
        (["stage=evaluate", "target.tensor_parallel=2"], ["target.tensor_parallel=2"]),
        (["train.steps=5"], ["train.steps", "train.epochs", "5 and 10"]),
        (["train.epochs=null"], ["train.steps", "train.epochs"]),
        (["answers=openai"], ["answers.openai.base_urls"]),
        (["answers.presence_penalty=0.5"], ["answers.presence_penalty"]),
        (["data.heldout=0.6", "data.benchmark=0.6"], ["data.heldout=0.6", "data.benchmark=0.6"]),
        (["data.heldout=0.5", "data.benchmark=0.5"], ["data.heldout=0.5", "data.benchmark=0.5"]),
        (["data.sources=[]"], ["data.sources"]),
        (["capture.shard_tokens=100"], ["capture.shard_tokens=100", "capture.chunk_tokens=128"]),
        (["deepspeed=zero0", "deepspeed.offload_optimizer=true"], ["deepspeed.offload_optimizer"]),
        (["drafter.sliding_window=6"], ["drafter.sliding_window=6", "drafter.block_size=7"]),
        (
            ["drafter.rope_scaling={rope_type: yrn, factor: 4.0}"],
            ["drafter.rope_scaling.rope_type=yrn", "yarn"],
        ),
        (["drafter.rope_scaling={rope_type: yarn}"], ["drafter.rope_scaling.factor", "yarn"]),
        (["drafter.num_taps=6"], ["drafter.num_taps=6", "target.num_taps"]),
        (["drafter.num_taps=0"], ["drafter.num_taps=0", "drafter.algorithm=dspark"]),
        (
            ["drafter.sample_from_anchor=false", "drafter.block_size=1"],
            ["drafter.block_size", "drafter.sample_from_anchor=false"],
        ),
        (["drafter.markov_rank=0", "drafter.markov_head=rnn"], ["drafter.markov_head=rnn", "markov_rank=0"]),
        (["drafter.markov_rank=0", "drafter.init.bigram=1"], ["drafter.init.bigram", "markov_rank=0"]),
        (["drafter.learned_start=true"], ["drafter.learned_start", "drafter.markov_head=rnn", "vanilla"]),
        (
            ["drafter.confidence_head=false", "drafter.confidence_label=sampled"],
            ["drafter.confidence_label=sampled", "drafter.confidence_head"],
        ),
        (
            ["drafter.confidence_head=false", "evaluate.threshold=0.5"],
            ["evaluate.threshold", "drafter.confidence_head=false"],
        ),
        (
            ["drafter.confidence_head=false", "evaluate.calibrate=true"],
            ["evaluate.calibrate=true", "drafter.confidence_head"],
        ),
        (
            ["drafter.confidence_head=false", "evaluate.sweep=true"],
            ["evaluate.sweep=true", "drafter.confidence_head"],
        ),
        (
            ["experiment=quickstart", "evaluate.calibrate=false"],
            ["evaluate.calibrate=false", "study.calibrated"],
        ),
        (["data.heldout=0"], ["data.heldout=0", "evaluate.calibrate=false"]),
        (["evaluate.benchmarks=[]"], ["evaluate.benchmarks"]),
        (["evaluate.files.mbpp=x.jsonl", "evaluate.benchmarks=[gsm8k]"], ["evaluate.files.mbpp"]),
        (["stage=study", "study.policies=[]"], ["study.policies"]),
        (["stage=study", "study.simulated_concurrencies=[]"], ["study.simulated_concurrencies"]),
        (["stage=export", "export.formats=[]"], ["export.formats"]),
        (["stage=export", "export.push=true"], ["export.push=true", "export.repo"]),
        (["stage=export", "export.converter=x"], ["export.converter", "llama_cpp"]),
        (["stage=export", "export.formats=[vllm,mlx]", "export.name=x"], ["export.name=x"]),
        (["stage=compare"], ["compare.table"]),
        (["experiment=compare_drafters", "compare.table=[dspark,nope]"], ["compare.table", "nope"]),
        (
            ["experiment=compare_drafters", "compare.figures.rank.values=[4,4]"],
            ["compare.figures.rank.values"],
        ),
        (
            ["experiment=compare_drafters", "compare.figures.depth.drafters=[nope]"],
            ["compare.figures.depth.drafters", "nope"],
        ),
    ],
)
def test_contradictions_name_the_keys(overrides: list[str], keys: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        composed(*overrides)
    assert str(error.value).startswith(keys[0])
    assert [key for key in keys if key not in str(error.value)] == []


def test_sources_are_needed_only_where_they_are_read() -> None:
    assert composed("stage=train", "data.sources=[]").data.sources == []
    chain = dataclasses.replace(composed(), cache="smollm2_quickstart:v0")
    check(dataclasses.replace(chain, data=dataclasses.replace(chain.data, sources=[])))


# --- what an algorithm leaves no choice in ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "drafter,override,expected",
    [
        ("dflash", "markov_rank=64", 0),
        ("dflash", "confidence_head=true", False),
        ("eagle3", "markov_rank=64", 0),
        ("eagle3", "confidence_head=true", False),
        ("eagle3", "depth=2", 1),
        ("eagle3", "sample_from_anchor=false", True),
        ("eagle3_llama", "depth=5", 1),
        ("mtp", "markov_rank=8", 0),
        ("mtp", "confidence_head=true", False),
        ("mtp", "depth=2", 1),
        ("mtp", "sample_from_anchor=false", True),
    ],
)
def test_fixed_choices_name_the_key(drafter: str, override: str, expected: object) -> None:
    shown = override.replace("true", "True").replace("false", "False")
    with pytest.raises(ConfigError) as error:
        composed(f"drafter={drafter}", f"drafter.{override}")
    assert str(error.value).startswith(f"drafter.{shown}:")
    assert f"drafter.algorithm={drafter.split('_')[0]}" in str(error.value)
    assert str(error.value).endswith(f" {expected}")


# --- a running server decides by itself ------------------------------------------------------------------------


def served(**changes: object) -> Config:
    """The config of an evaluation of the server http://h:1, with the fields ``changes``; a dict: of ``evaluate``."""
    config = dataclasses.replace(composed("stage=evaluate"), engine="vllm", server="http://h:1")
    evaluate = dataclasses.replace(config.evaluate, **changes.pop("evaluate", {}))  # type: ignore[arg-type]
    return dataclasses.replace(config, evaluate=evaluate, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes,key",
    [
        ({"server": None}, "engine and server:"),
        ({"engine": None}, "engine and server:"),
        ({"plain_server": "http://h:1"}, "plain_server=http://h:1:"),
        ({"engine": None, "server": None, "plain_server": "http://h:2"}, "plain_server=http://h:2:"),
        ({"evaluate": {"baseline": False}, "plain_server": "http://h:2"}, "plain_server=http://h:2:"),
        ({"evaluate": {"profile": True}}, "evaluate.profile=true:"),
        ({"evaluate": {"threshold": 0.5}}, "evaluate.threshold:"),
        ({"evaluate": {"batch": 2}}, "evaluate.batch:"),
        ({"ranks": 2}, "ranks:"),
        ({"stage": composed("stage=train").stage}, "engine=vllm:"),
    ],
)
def test_contradictions_with_a_server_name_the_key(changes: dict, key: str) -> None:
    check(served())
    with pytest.raises(ConfigError, match=f"^{re.escape(key)}"):
        check(served(**changes))
