import functools
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf

from pipeline import config as schema

CONF = Path(__file__).parents[2] / "conf"


@functools.cache
def by_hydra(*overrides: str) -> DictConfig:
    schema.register()
    with initialize_config_dir(str(CONF), version_base=None):
        return compose("config", overrides=list(overrides))


def composed(*overrides: str) -> schema.Config:
    """The config of these overrides; values are merged into what Hydra makes of the groups, which takes a while."""
    values = [o for o in overrides if "." in o.split("=")[0]]
    groups = by_hydra(*(o for o in overrides if o not in values))
    return schema.resolve(OmegaConf.merge(groups, OmegaConf.from_dotlist(values)))


@pytest.mark.parametrize("name", sorted(p.stem for p in (CONF / "experiment").glob("*.yaml")))
def test_every_experiment_composes(name: str) -> None:
    assert composed(f"experiment={name}").stage.steps


@pytest.mark.parametrize("stage", ["cache", "train", "evaluate", "all", "list"])  # compare needs drafters
def test_every_stage_composes(stage: str) -> None:
    assert composed(f"stage={stage}").stage.name == stage


GROUPS = (
    "target", "data", "answers", "capture", "drafter", "train", "deepspeed", "evaluate", "study", "export", "tracking",
)  # fmt: skip
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
        by_hydra("train.learning_rate=1")


def test_wrong_types_are_named() -> None:
    with pytest.raises(ConfigCompositionException, match="train.lr"):
        by_hydra("train.lr=fast")


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
        (["drafter.markov_head=magic"], "drafter.markov_head: expected one of .* got 'magic'"),
        (["drafter.family=mamba"], "drafter.family: expected one of .* got 'mamba'"),
        (["drafter.confidence_label=hard"], "drafter.confidence_label: expected one of .* got 'hard'"),
        (["drafter.vocab_size=1"], "drafter.vocab_size: expected at least 2, got 1"),
        (["drafter.train_steps=0"], "drafter.train_steps: expected at least 1, got 0"),
        (["drafter.num_taps=-1"], "drafter.num_taps: expected at least 0, got -1"),
        (["drafter.sliding_window=6"], "drafter.sliding_window=6: expected at least drafter.block_size=7"),
        (
            ["drafter.sample_from_anchor=false", "drafter.block_size=1"],
            "drafter.block_size: expected at least 2 with drafter.sample_from_anchor=false",
        ),
        (
            ["drafter.learned_start=true"],
            "drafter.learned_start: only drafter.markov_head=rnn has a state, got vanilla",
        ),
        (
            ["drafter.confidence_head=false", "drafter.confidence_label=sampled"],
            "drafter.confidence_label=sampled: drafter.confidence_head is false",
        ),
        (["drafter.algorithm=magic"], "drafter.algorithm: expected one of"),
        (["answers.presence_penalty=0.5"], "answers.presence_penalty"),
        (["drafter.loss.ramp=[0.6,0.2]"], "drafter.loss.ramp"),
        (["deepspeed=zero0", "deepspeed.offload_optimizer=true"], "deepspeed.offload_optimizer"),
        (["train.lr=0"], "train.lr"),
        (["capture.shard_tokens=100"], "capture.shard_tokens=100: expected a multiple"),
        (
            ["drafter.confidence_head=false", "evaluate.calibrate=true"],
            "evaluate.calibrate=true: drafter.confidence_head=false",
        ),
        (
            ["drafter.confidence_head=false", "evaluate.sweep=true"],
            "evaluate.sweep=true: drafter.confidence_head=false",
        ),
        (["evaluate.calibration_prompts=0"], "evaluate.calibration_prompts: expected at least 1, got 0"),
        (
            ["experiment=quickstart", "evaluate.calibrate=false"],
            "evaluate.calibrate=false: the study that ends the chain schedules by calibrated confidences",
        ),
        (["data.heldout=0"], "data.heldout=0: the calibration needs .* evaluate.calibrate=false"),
        (["evaluate.benchmarks=[gsm9k]"], "evaluate.benchmarks: expected some of .*, got gsm9k"),
        (["evaluate.files.mbpp=x.jsonl", "evaluate.benchmarks=[gsm8k]"], "evaluate.files.mbpp: no such name"),
        (["stage=compare"], "compare.table: expected at least one .*, got none"),
        (
            ["experiment=compare_drafters", "compare.table=[dspark,nope]"],
            "compare.table: expected some of .*, got nope",
        ),
        (
            ["experiment=compare_drafters", "compare.figures.rank.values=[4,4]"],
            r"compare.figures.rank.values: expected each one once, got \[4, 4\]",
        ),
        (
            ["experiment=compare_drafters", "compare.figures.depth.drafters=[nope]"],
            "compare.figures.depth.drafters: expected some of .*, got nope",
        ),
    ],
)
def test_contradictions_name_the_keys(overrides: list[str], message: str) -> None:
    with pytest.raises(schema.ConfigError, match=message):
        composed(*overrides)


# --- what an algorithm leaves no choice in ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "drafter,override,has",
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
def test_fixed_choices_name_the_key(drafter: str, override: str, has: object) -> None:
    algorithm = drafter.split("_")[0]
    shown = override.replace("true", "True").replace("false", "False")
    with pytest.raises(
        schema.ConfigError, match=f"^drafter.{shown}: drafter.algorithm={algorithm} has {has}$"
    ):
        composed(f"drafter={drafter}", f"drafter.{override}")


@pytest.mark.parametrize(
    "name,expected",
    [
        (
            "dspark",
            {"algorithm": "dspark", "markov_head": "vanilla", "markov_rank": 256, "confidence_head": True},
        ),
        (
            "dspark_gated",
            {"algorithm": "dspark", "name": "dspark_gated", "markov_head": "gated", "markov_rank": 256},
        ),
        ("dspark_rnn", {"algorithm": "dspark", "name": "dspark_rnn", "markov_head": "rnn", "depth": 5}),
        ("dflash", {"algorithm": "dflash", "block_size": 7, "markov_rank": 0, "sample_from_anchor": True}),
        ("dflash_fill_in", {"algorithm": "dflash", "block_size": 16, "sample_from_anchor": False}),
        (
            "eagle3",
            {"algorithm": "eagle3", "depth": 1, "family": None, "num_taps": None, "train_steps": None},
        ),
        ("eagle3_llama", {"algorithm": "eagle3", "family": "llama", "num_taps": 3, "depth": 1}),
        ("mtp", {"algorithm": "mtp", "depth": 1, "num_taps": 0, "train_steps": 1, "block_size": 7}),
    ],
)
def test_drafters(name: str, expected: dict) -> None:
    drafter = composed(f"drafter={name}").drafter
    assert {key: getattr(drafter, key) for key in expected} == expected


@pytest.mark.parametrize("name", sorted(p.stem for p in (CONF / "drafter").glob("*.yaml")))
def test_losses_of_the_drafters(name: str) -> None:
    """(cross-entropy, L1, confidence, soft) of the paper, of DFlash and MTP, of Eagle3."""
    tokens, soft = (1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0)
    expected = {"dspark": (0.1, 0.9, 1.0, 0.0), "dflash": tokens, "mtp": tokens, "eagle3": soft}
    drafter = composed(f"drafter={name}").drafter
    loss = drafter.loss
    assert (loss.ce, loss.l1, loss.confidence, loss.soft) == expected.get(drafter.algorithm, tokens)
