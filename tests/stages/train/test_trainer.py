import copy
import time

import pytest
import tiny
import torch
from tiny_errors import refused
from torch import nn

from pipeline.config import ConfigError, DeepSpeedConfig, TrainConfig
from pipeline.drafts.base import LossWeights, supervise
from stages.train import trainer
from stages.train.anchors import stack
from stages.train.batches import Micro

WEIGHTS = LossWeights(0.1, 0.9, 1.0, 0.3)


def test_json_of_a_run() -> None:
    train = TrainConfig(micro_batch=8, clip=0.5, dtype="bf16")
    made = trainer.engine_config(
        train, DeepSpeedConfig(stage=2, offload_optimizer=True), micro_steps=4, world_size=2
    )
    assert made["train_batch_size"] == 64
    assert made["gradient_accumulation_steps"] == 4
    assert made["gradient_clipping"] == 0.5
    assert made["zero_optimization"] == {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    assert made["torch_autocast"] == {
        "enabled": True,
        "dtype": "bfloat16",
        "lower_precision_safe_modules": [],
    }
    assert "bf16" not in made
    assert not trainer.engine_config(TrainConfig(dtype="fp32"), DeepSpeedConfig(), 1, 1)["torch_autocast"][
        "enabled"
    ]


def test_extra_is_merged_last() -> None:
    extra = {"gradient_clipping": 2.0, "zero_optimization": {"overlap_comm": True}}
    made = trainer.engine_config(TrainConfig(), DeepSpeedConfig(stage=1, extra=extra), 1, 1)
    assert made["gradient_clipping"] == 2.0
    assert made["zero_optimization"] == {"stage": 1, "overlap_comm": True}


def test_stage_zero_has_no_offload() -> None:
    with refused(ConfigError, "deepspeed.offload_optimizer=true", "deepspeed.stage", 0):
        trainer.engine_config(TrainConfig(), DeepSpeedConfig(stage=0, offload_optimizer=True), 1, 1)


def micros(drafts: int = 7) -> list[Micro]:
    made = []
    for seed, lengths in enumerate([[12, 9], [20]]):
        batch = tiny.batch(lengths, seed)
        blocks = stack([torch.tensor([3, 5]), torch.tensor([2, 6])][: len(lengths)])
        made.append(Micro(batch, blocks, supervise(batch, blocks, drafts, 7.0), 0.0))
    return made


def plain_step(draft, train: TrainConfig, lr: float) -> float:
    """One step as a page of plain torch says it: the yardstick."""
    parts = micros(draft.max_drafts)
    weight = sum(float(m.supervision.weights.sum()) for m in parts)
    optimizer = torch.optim.AdamW(
        draft.trainable_parameters(), lr=lr, betas=tuple(train.betas), weight_decay=train.weight_decay
    )
    total = sum(draft.loss(m.batch, m.blocks, m.supervision, WEIGHTS).total for m in parts) / weight
    total.backward()
    norm = nn.utils.clip_grad_norm_(draft.trainable_parameters(), train.clip)
    optimizer.step()
    return float(norm)


# ZeRO-3 keeps small tensors whole; with this it takes all of them apart, as it does with those of a real draft.
APART = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
STEPS = [
    *(("dspark", {}, stage, {}) for stage in range(4)),
    ("dspark", {"markov_head": "rnn", "learned_start": True}, 3, APART),
    ("dflash", {"sample_from_anchor": False}, 3, APART),
    ("eagle3", {"ids": torch.arange(0, 272, 3)}, 3, APART),
    ("mtp", {}, 3, APART),
    ("dspark", {"family": "gemma4"}, 3, APART),
]


@pytest.mark.parametrize("algorithm,changes,stage,extra", STEPS)
def test_a_step_is_the_plain_step(algorithm: str, changes: dict, stage: int, extra: dict) -> None:
    """Accumulation, normalisation, clipping and AdamW at every ZeRO stage, in fp32."""
    train = TrainConfig(micro_batch=2, clip=0.05, dtype="fp32", weight_decay=0.1)
    draft = tiny.draft(algorithm, **changes)
    expected = copy.deepcopy(draft)
    norm = plain_step(expected, train, lr=3e-3)
    assert norm > 2 * train.clip  # it does clip
    parts = micros(draft.max_drafts)
    weight = sum(float(m.supervision.weights.sum()) for m in parts)
    with trainer.process_group():
        made = trainer.Trainer(draft, train, DeepSpeedConfig(stage=stage, extra=extra), micro_steps=2)
        if extra:
            assert all(p.numel() == 0 for p in draft.parameters()), "all tensors are apart"
        for micro in parts:
            made.backward(made.loss(micro, WEIGHTS, 128).total, weight)
        assert bool(torch.isfinite(made.take_square()))
        assert made.step(3e-3) == pytest.approx(norm, rel=1e-5)
        with made.gathered() as whole:
            got = {name: p.detach().clone() for name, p in whole.named_parameters()}
        made.close()
    for name, parameter in expected.named_parameters():
        # Adam divides by the size of tiny gradients: the sums' last bits show in weights that hardly move.
        assert torch.allclose(got[name], parameter, atol=1e-5), name


def test_bf16_first_update_is_adam_s() -> None:
    """ZeRO 0 with DeepSpeed's own bf16 would make it 0.744 lr; with autocast it is lr."""
    draft = tiny.draft()
    draft.freeze()
    before = draft.fc.weight.detach().clone()
    frozen = draft.lm_head.weight.detach().clone()
    (micro, *_) = micros()
    with trainer.process_group():
        made = trainer.Trainer(
            draft, TrainConfig(clip=0.0, micro_batch=2), DeepSpeedConfig(stage=0), micro_steps=1
        )
        made.backward(made.loss(micro, WEIGHTS, 128).total, 10.0)
        assert draft.fc.weight.grad is not None
        moved = draft.fc.weight.grad.abs() > 1e-6
        made.step(1e-3)
        change = (draft.fc.weight.detach() - before).abs()[moved]
        made.close()
    assert draft.fc.weight.dtype == torch.float32
    assert float(change.mean()) == pytest.approx(1e-3, rel=0.01)
    assert torch.equal(draft.lm_head.weight, frozen)


def test_a_gradient_that_is_not_finite_is_seen() -> None:
    draft = tiny.draft()
    draft.freeze()
    (micro, *_) = micros()
    with trainer.process_group():
        made = trainer.Trainer(
            draft, TrainConfig(dtype="fp32", micro_batch=2), DeepSpeedConfig(stage=1), micro_steps=1
        )
        made.backward(made.loss(micro, WEIGHTS, 128).total * float("inf"), 10.0)
        assert not bool(torch.isfinite(made.take_square()))
        assert float(made.take_square()) == 0
        made.close()


def test_on_main_waits_without_one_long_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        trainer.ranks, "world_size", lambda: 2
    )  # the branch of several ranks; the group has one
    with trainer.process_group():
        assert trainer.on_main(lambda: (time.sleep(0.1), 7)[1]) == 7
        with pytest.raises(ValueError, match="broken"):
            trainer.on_main(lambda: int("broken"))
        assert trainer.sum_over_ranks([1.5, torch.tensor(2)]) == [1.5, 2.0]


def test_gather_and_from_main_of_one_rank() -> None:
    with trainer.process_group():
        assert trainer.gather("x") == ["x"]
        assert trainer.from_main({"step": 3}) == {"step": 3}
