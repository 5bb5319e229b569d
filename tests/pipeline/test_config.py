from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException

from pipeline import config as schema

CONF = Path(__file__).parents[2] / "conf"


def composed(*overrides: str) -> schema.Config:
    schema.register()
    with initialize_config_dir(str(CONF), version_base=None):
        return schema.resolve(compose("config", overrides=list(overrides)))


@pytest.mark.parametrize("name", sorted(p.stem for p in (CONF / "experiment").glob("*.yaml")))
def test_every_experiment_composes(name: str) -> None:
    assert composed(f"experiment={name}").stage.steps


@pytest.mark.parametrize("stage", ["cache", "train", "evaluate", "all", "list"])
def test_every_stage_composes(stage: str) -> None:
    assert composed(f"stage={stage}").stage.name == stage


GROUPS = ("target", "data", "answers", "capture", "drafter", "train", "deepspeed", "evaluate", "tracking")
EXTRA = {"hf": ["target.path=somewhere"], "local": ["data.sources=[{path: a.jsonl}]"]}
OPTIONS = [(g, p.stem) for g in GROUPS for p in sorted((CONF / g).glob("*.yaml"))]


@pytest.mark.parametrize("group,option", OPTIONS)
def test_every_option_composes(group: str, option: str) -> None:
    extra = EXTRA.get(option, []) if group in ("target", "data") else []
    if (group, option) == ("answers", "openai"):
        extra = ["answers.openai.base_urls=[http://127.0.0.1:1/v1]"]
    config = composed(f"{group}={option}", *extra)
    assert getattr(config, group) is not None


def test_targets() -> None:
    assert composed("target=qwen3_4b").target.path == "Qwen/Qwen3-4B"
    assert composed("target=hf", "target.path=/models/mine").target.path == "/models/mine"


def test_unknown_keys_are_named() -> None:
    with pytest.raises(ConfigCompositionException, match="train.learning_rate"):
        composed("train.learning_rate=1")


def test_wrong_types_are_named() -> None:
    with pytest.raises(ConfigCompositionException, match="train.lr"):
        composed("train.lr=fast")


@pytest.mark.parametrize(
    "overrides,message",
    [
        (["target=hf"], "target.path"),
        (["train.steps=5"], "train.steps and train.epochs: expected exactly one"),
        (["train.epochs=null"], "train.steps and train.epochs: expected exactly one"),
        (["answers=openai"], "answers.openai.base_urls: expected at least one"),
        (
            ["drafter.confidence_head=false", "evaluate.threshold=0.5"],
            "evaluate.threshold: .*drafter.confidence_head",
        ),
        (["target.dtype=int8"], "target.dtype: expected one of .* got 'int8'"),
        (["evaluate.temperature=-1"], "evaluate.temperature: expected at least 0, got -1"),
        (["evaluate.top_p=1.5"], "evaluate.top_p"),
        (["data.heldout=0.6", "data.benchmark=0.6"], "data.heldout and data.benchmark"),
        (["drafter.block_size=0"], "drafter.block_size: expected at least 1, got 0"),
        (["deepspeed.stage=4"], "deepspeed.stage"),
        (["train.micro_batch=0"], "train.micro_batch"),
        (["drafter.markov_head=rnn"], "drafter.markov_head"),
        (["drafter.algorithm=magic"], "drafter.algorithm: expected one of"),
        (["answers.presence_penalty=0.5"], "answers.presence_penalty"),
        (["drafter.loss.ramp=[0.6,0.2]"], "drafter.loss.ramp"),
        (["deepspeed=zero0", "deepspeed.offload_optimizer=true"], "deepspeed.offload_optimizer"),
        (["train.lr=0"], "train.lr"),
        (["capture.shard_tokens=100"], "capture.shard_tokens=100: expected a multiple"),
        (["evaluate.benchmarks=[gsm9k]"], "evaluate.benchmarks: expected some of .*, got gsm9k"),
        (["evaluate.files.mbpp=x.jsonl", "evaluate.benchmarks=[gsm8k]"], "evaluate.files.mbpp: no such name"),
    ],
)
def test_contradictions_name_the_keys(overrides: list[str], message: str) -> None:
    with pytest.raises(schema.ConfigError, match=message):
        composed(*overrides)
