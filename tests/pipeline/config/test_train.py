import pytest
from composing import accepted, composed, lacking, out_of_range, refusal

from pipeline.config import DeepSpeedConfig, TrainConfig, section


def test_defaults():
    assert section(TrainConfig()) == {
        "steps": None, "epochs": None, "global_batch": None, "micro_batch": 8, "anchors": 512, "lr": 6e-4,
        "betas": [0.9, 0.95], "weight_decay": 0.0, "warmup": 0.04, "min_lr": 0.0, "clip": 1.0, "dtype": "bf16",
        "attention": "auto", "checkpoint_every": 500, "evaluate_every": None, "keep_checkpoints": 2,
        "heldout_samples": 256, "workers": 2, "verify": "full", "compile": False,
    }  # fmt: skip
    assert section(DeepSpeedConfig()) == {"stage": 1, "offload_optimizer": False, "extra": {}}


@pytest.mark.parametrize(
    "override",
    [
        "train.steps=0",
        "train.epochs=0.0",
        "train.global_batch=0",
        "train.micro_batch=0",
        "train.anchors=0",
        "train.lr=0.0",
        "train.lr=nan",
        "train.lr=inf",
        "train.clip=0.0",
        "train.betas=[0.9]",
        "train.weight_decay=-0.1",
        "train.warmup=-0.1",
        "train.warmup=1.1",
        "train.min_lr=1.1",
        "train.dtype=fp16",
        "train.attention=sdpa",
        "train.keep_checkpoints=0",
        "train.heldout_samples=-1",
        "train.workers=-1",
        "train.verify=none",
        "deepspeed.stage=-1",
        "deepspeed.stage=4",
    ],
)
def test_a_value_out_of_its_range_is_named(override: str):
    assert out_of_range(override) == override


@pytest.mark.parametrize("beta", [-0.1, 1.0])
def test_a_beta_out_of_its_range_is_named(beta: float):
    assert out_of_range(f"train.betas=[0.9,{beta}]") == f"train.betas[1]={beta}"


@pytest.mark.parametrize(
    "override",
    [
        "train.betas=[0.0, 0.999]",
        "train.weight_decay=0.0",
        "train.warmup=0.0",
        "train.warmup=1.0",
        "train.min_lr=1.0",
        "train.dtype=fp32",
        "train.attention=flex",
        "train.heldout_samples=0",
        "train.workers=0",
        "train.verify=size",
        "deepspeed.stage=0",
        "deepspeed.stage=3",
    ],
)
def test_the_ends_of_a_range_are_in_it(override: str):
    assert accepted(override) == override


def test_a_run_is_as_long_as_its_steps_or_its_epochs_say():
    assert accepted("train.steps=1") == "train.steps=1"
    assert accepted("train.epochs=2.0") == "train.epochs=2.0"
    assert accepted("train.epochs=null") == "train.epochs=None"
    named = ["train.steps", "train.epochs", "5 and 10"]
    assert lacking(refusal("train.steps=5", "train.epochs=10"), named) == []


def test_only_a_divided_optimizer_can_be_offloaded():
    override = "deepspeed.offload_optimizer=true"
    assert refusal("deepspeed=zero0", override).startswith("deepspeed.offload_optimizer:")
    assert composed("deepspeed=zero1", override).deepspeed.offload_optimizer
