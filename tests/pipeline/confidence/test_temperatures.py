import numpy as np
import pytest
from tiny_errors import refused

from pipeline.confidence.temperatures import (
    GRID,
    CalibrationError,
    auc,
    ece,
    fit,
    quality,
    raw_thresholds,
    scaled,
)


def rounds(temperatures: list[float], count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Confidences whose logits are ``temperatures`` times too large, and outcomes drawn from the true ones."""
    rng = np.random.default_rng(seed)
    true = rng.normal(0.8, 1.2, (count, len(temperatures)))  # logits
    held = rng.uniform(size=true.shape) < 1 / (1 + np.exp(-true))
    confidences = 1 / (1 + np.exp(-true * np.array(temperatures)))
    return confidences, held.cumprod(1).sum(1), np.full(count, len(temperatures))


def test_true_temperatures_come_back_within_the_grids_step() -> None:
    confidences, accepted, proposed = rounds([2.0, 0.5, 3.0], 100_000)
    found = fit(confidences, accepted, proposed)
    step = np.log(GRID[1] / GRID[0])
    assert np.abs(np.log(found / np.array([2.0, 0.5, 3.0]))).max() <= 1.01 * step


def test_the_error_falls_and_the_order_stays() -> None:
    confidences, accepted, proposed = rounds([3.0] * 4, 20_000)
    fitted = fit(*rounds([3.0] * 4, 20_000, seed=1))
    after = scaled(confidences, fitted)
    before_quality, after_quality = (
        quality(confidences, accepted, proposed),
        quality(after, accepted, proposed),
    )
    for k in range(4):
        assert after_quality[k].ece < before_quality[k].ece / 2
        assert (np.argsort(after[:, k], kind="stable") == np.argsort(confidences[:, k], kind="stable")).all()
    assert after_quality[0].auc == pytest.approx(before_quality[0].auc, abs=1e-9)


def test_error_by_hand() -> None:
    """Bins of a twentieth: .52 and .53 share one (mean .525, half held: .025), .91 is alone (held: .09)."""
    assert ece(np.array([0.52, 0.53, 0.91]), np.array([True, False, True])) == pytest.approx(
        2 / 3 * 0.025 + 1 / 3 * 0.09
    )
    assert ece(np.array([1.0, 1.0]), np.array([True, True])) == 0


def test_auc_by_hand() -> None:
    assert auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True])) == pytest.approx(0.75)
    assert auc(np.array([0.5, 0.5]), np.array([True, False])) == pytest.approx(0.5)
    assert auc(np.array([0.5, 0.6]), np.array([True, True])) is None


def test_a_round_that_ended_early_says_nothing_about_later_drafts() -> None:
    confidences = np.array([[0.9, 0.9], [0.9, np.nan], [0.9, np.nan]])
    found = quality(confidences, np.array([2, 1, 1]), np.array([2, 1, 1]))
    assert [q.rounds for q in found] == [3, 1]
    assert found[1].predicted[16] == pytest.approx(0.81) and found[1].observed[16] == 1
    assert fit(confidences, np.array([2, 1, 1]), np.array([2, 1, 1])).shape == (2,)


@pytest.mark.parametrize(
    "confidences,named", [(np.zeros((0, 7)), []), (np.array([[0.5, np.nan, 1.2]]), [0, 1, 1.2])]
)
def test_what_nothing_can_be_fitted_from_is_named(confidences: np.ndarray, named: list) -> None:
    with refused(CalibrationError, "confidences", *named):
        fit(confidences, np.zeros(len(confidences)), np.zeros(len(confidences)))


def test_raw_thresholds_by_hand() -> None:
    """logit(0.8) = ln 4; at T = 2 the raw confidence must reach 4^2 / (1 + 4^2), at T = 0.5 4^.5 / (1 + 4^.5)."""
    assert raw_thresholds(0.8, [2.0, 1.0, 0.5]) == pytest.approx([16 / 17, 0.8, 2 / 3], abs=1e-12)
    assert raw_thresholds(0.0, [2.0, 0.5]) == [0.0, 0.0]
    assert raw_thresholds(1.0, [2.0, 0.5]) == [1.0, 1.0]
    assert raw_thresholds(0.001, [1000.0]) == pytest.approx([0.0], abs=1e-300)  # no overflow


def test_a_raw_threshold_cuts_what_the_calibrated_one_would() -> None:
    confidences, temperatures = rounds([1.0] * 4, 2_000)[0], [0.1, 0.7, 1.9, 10.0]
    least = np.array(raw_thresholds(0.37, temperatures))
    assert ((confidences >= least) == (scaled(confidences, np.array(temperatures)) >= 0.37)).all()
    assert 0 < (confidences >= least).mean() < 1
