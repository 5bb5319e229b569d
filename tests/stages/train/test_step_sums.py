"""The figures of a step are means over the weights and blocks of all micro-batches."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from pipeline.drafts.base import LossTerms
from stages.train import step_sums
from stages.train.step_sums import GREEDY, SCORE, Sums, Timed


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank, whose sums are the sums."""
    monkeypatch.setattr(
        step_sums.trainer, "sum_over_ranks", lambda values: [float(value) for value in values]
    )


def micro(sample: int, weight: float) -> SimpleNamespace:
    """Two blocks of one sample (-1: a filler), the second of them not kept."""
    return SimpleNamespace(
        batch=SimpleNamespace(samples=torch.tensor([sample])),
        blocks=SimpleNamespace(keep=torch.tensor([[True, False]])),
        supervision=SimpleNamespace(weights=torch.tensor([weight])),
    )


def terms(total: float, acceptance: float | None = None, agreement: bool | None = None) -> LossTerms:
    """Two drafts a block, each accepted with ``acceptance``."""
    zero = torch.tensor(0.0)
    return LossTerms(
        total=torch.tensor(total),
        ce=torch.tensor(total / 2),
        l1=zero,
        confidence=zero,
        acceptance=None if acceptance is None else torch.full((1, 2, 2), acceptance),
        agreement=None if agreement is None else torch.full((1, 2, 2), float(agreement)),
    )


def test_figures_are_means_over_weights_and_kept_blocks() -> None:
    sums = Sums()
    sums.add(micro(3, 4.0), terms(8.0, 0.5, True))
    sums.add(micro(5, 2.0), terms(1.0, 0.0, False))
    figures, finite = sums.over_ranks()
    assert finite
    assert figures["weight"] == 6.0 and figures["loss"] == 1.5 and figures["ce"] == 0.75
    assert figures[SCORE] == (1 + 0.5 + 0.25 + 1) / 2  # the bonus token counts
    assert figures[GREEDY] == (3 + 1) / 2


def test_a_filler_counts_as_nothing() -> None:
    sums = Sums()
    sums.add(micro(-1, 0.0), terms(0.0, 0.5, True))
    sums.add(micro(3, 2.0), terms(3.0, 1.0, True))
    figures, _ = sums.over_ranks()
    assert (figures["loss"], figures[SCORE]) == (1.5, 3.0)


def test_what_was_not_computed_is_not_reported() -> None:
    sums = Sums()
    sums.add(micro(3, 1.0), terms(2.0))
    assert set(sums.over_ranks()[0]) == {"loss", "ce", "l1", "confidence", "weight"}


def test_a_rank_without_micro_batches_adds_nothing() -> None:
    assert Sums().over_ranks() == ({"loss": 0, "ce": 0, "l1": 0, "confidence": 0, "weight": 1}, True)


@pytest.mark.parametrize(("total", "square"), [(float("nan"), 1.0), (1.0, float("inf"))])
def test_what_is_not_finite_is_named(total: float, square: float) -> None:
    """Pitfall 33."""
    sums = Sums()
    sums.add(micro(3, 1.0), terms(2.0), torch.tensor(4.0))
    sums.add(micro(7, 1.0), terms(total), torch.tensor(square))
    assert not sums.over_ranks()[1]
    ((samples, loss, norm),) = sums.not_finite()
    assert samples == [7] and str((loss, norm)) == str((total, square**0.5))


def test_waiting_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.5, 20.0, 21.0])
    monkeypatch.setattr(step_sums, "monotonic", lambda: next(clock))
    items: Iterator[int] = iter([1, 2])
    timed = Timed(items)  # type: ignore[arg-type]
    assert [next(timed), next(timed), timed.waited] == [1, 2, 1.5]
