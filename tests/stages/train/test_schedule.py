import pytest
from tiny_errors import refused

from pipeline.config import ConfigError, LossConfig, TrainConfig
from pipeline.drafts.base import LossWeights
from stages.train.schedule import chosen, final_weights, learning_rate, loss_weights, total_steps


def test_learning_rate_warms_up_and_falls_as_a_cosine() -> None:
    config = TrainConfig(lr=1.0, warmup=0.2, min_lr=0.1)
    rates = [learning_rate(step, 10, config) for step in range(10)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[6] == pytest.approx(0.55)  # half way down from 1 to 0.1
    assert rates == sorted(rates[:3]) + sorted(rates[3:], reverse=True)
    assert learning_rate(10, 10, config) == pytest.approx(0.1)


def test_no_warmup_starts_at_the_full_rate() -> None:
    assert learning_rate(0, 5, TrainConfig(lr=0.3, warmup=0.0)) == 0.3


@pytest.mark.parametrize(
    ("samples", "batch", "epochs", "steps", "every"),
    [
        (1, 1, 100.0, 100, 10), (5, 5, 100.0, 100, 10), (40, 8, 100.0, 500, 50), (200, 8, 20.0, 500, 50),
        (1_000, 8, 10.0, 1250, 500), (10_000, 128, 10.0, 782, 500), (32_768, 512, 10.0, 640, 500),
        (1_000_000, 512, 10.0, 19532, 500),
    ],
)  # fmt: skip
def test_what_is_left_open_follows_from_the_samples(samples, batch, epochs, steps, every) -> None:
    """Forty rows had one step of 512."""
    made = chosen(TrainConfig(), samples)
    assert (made.global_batch, made.epochs, made.evaluate_every) == (batch, epochs, every)
    assert total_steps(made, samples) == steps


def test_what_is_set_stays() -> None:
    made = chosen(TrainConfig(steps=3), 40)
    assert (made.steps, made.epochs, made.global_batch, made.evaluate_every) == (3, None, 8, 500)
    made = chosen(TrainConfig(epochs=1.0, global_batch=512, evaluate_every=7), 40)
    assert (made.steps, made.epochs, made.global_batch, made.evaluate_every) == (None, 1.0, 512, 7)
    assert total_steps(made, 40) == 1
    assert chosen(TrainConfig(global_batch=4), 100).epochs == 20.0


def test_paper_weights_are_constant() -> None:
    for step in (0, 5, 9):
        assert loss_weights(step, 10, LossConfig()) == LossWeights(0.1, 0.9, 1.0)


def test_weights_move_between_the_ramp_s_ends() -> None:
    config = LossConfig(ce=0.1, l1=0.9, ce_start=1.0, l1_start=0.0, ramp=[0.2, 0.6])
    weights = [loss_weights(step, 10, config) for step in range(10)]
    assert weights[0] == weights[2] == LossWeights(1.0, 0.0, 1.0)
    assert (weights[4].ce, weights[4].l1) == (pytest.approx(0.55), pytest.approx(0.45))
    assert weights[6] == weights[9] == final_weights(config) == LossWeights(0.1, 0.9, 1.0)


def test_a_ramp_of_no_length_is_a_step() -> None:
    config = LossConfig(ce_start=1.0, ramp=[0.5, 0.5])
    assert [loss_weights(step, 4, config).ce for step in range(4)] == [1.0, 1.0, 0.1, 0.1]


def test_total_steps() -> None:
    assert total_steps(TrainConfig(steps=7), 100) == 7
    assert total_steps(TrainConfig(epochs=1.5, global_batch=8), 100) == 19


def test_no_steps_at_all() -> None:
    with refused(ConfigError, "train.steps=0", "train.epochs=None"):
        total_steps(TrainConfig(steps=0), 10)
