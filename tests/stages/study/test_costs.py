import numpy as np
import pytest
from tiny_errors import refused

from data_specs.sps import SpsTable
from pipeline.decoding.scheduler import algorithm_1
from pipeline.decoding.steps import Step
from stages.study.costs import (
    CostError,
    Curve,
    StepRates,
    Surface,
    TableCosts,
    from_steps,
    from_table,
)

BOX = SpsTable(
    "box", "a box", "tiny", "model", "not measured", 10, 0.01, ((1, 2.0), (3, 1.0)), ((1, 0.1), (3, 0.3))
)


def step(requests: int, verified: int, seconds: float, prefilled: int = 0, draft: float = 0.0) -> Step:
    return Step(
        0.0,
        requests,
        0,
        requests if draft else 0,
        verified,
        0,
        0,
        prefilled,
        2.0 * prefilled,
        draft,
        0.0,
        seconds,
    )


def test_a_curve_is_linear_and_keeps_its_last_slope() -> None:
    curve = Curve.of([(4, 2.0), (2, 1.0), (2, 1.4), (6, 4.0)])
    assert [float(curve(x)) for x in (1, 2, 3, 4, 5, 6, 8)] == pytest.approx(
        [1.2, 1.2, 1.6, 2.0, 3.0, 4.0, 6.0]
    )
    assert Curve.of([(1, 3.0), (2, 1.0)])(5) == 1.0, "a falling end is not carried on"
    assert Curve.of([(1, 3.0)])(5) == 3.0
    with refused(CostError, "costs"):
        Curve.of([])


def test_a_surface_is_linear_between_curves() -> None:
    surface = Surface.of([(2, 4, 1.0), (2, 8, 3.0), (4, 4, 2.0)])
    assert [float(surface(first, 4)) for first in (1, 2, 3, 4, 9)] == [1.0, 1.0, 1.5, 2.0, 2.0]
    # 3 requests with 9 tokens are 3 each: 6 of 2 requests, 12 of 4.
    assert float(surface(3, 9, scales=True)) == 2.0


def test_costs_of_a_table() -> None:
    costs = from_table(BOX)
    # 1 / 2 s at 10 positions of .01 s each: .4 without them; 3 tokens .9; in between linear.
    assert float(costs.verify_seconds(1, 1, 10)) == pytest.approx(0.5)
    assert float(costs.verify_seconds(2, 2, 30)) == pytest.approx(0.65 + 0.3)
    assert costs.draft_seconds(2, 7) == pytest.approx(0.2) and costs.draft_seconds(2, 0) == 0.0
    assert costs.prefill_seconds(3) == pytest.approx(0.9) and costs.prefill_seconds(0) == 0.0


def test_costs_of_steps_by_requests_tokens_and_drafts() -> None:
    steps = [step(0, 0, 0.0, prefilled=4)]
    steps += (
        3 * [step(2, 2, 1.0)] + 3 * [step(2, 4, 1.4, draft=0.5)] + 3 * [step(4, 4, 2.0)] + [step(3, 3, 9.0)]
    )
    costs = from_steps(steps)
    assert float(costs.verify_seconds(2, 3, 99)) == pytest.approx(1.2)
    assert float(costs.verify_seconds(4, 4, 0)) == 2.0
    assert float(costs.verify_seconds(3, 3, 0)) == pytest.approx(1.5), "one step is no measurement"
    assert (
        costs.draft_seconds(7, 1) == 0.5
        and costs.prefill_seconds(9) == 8.0
        and costs.schedule_seconds(3) == 0.0
    )
    with refused(CostError, "costs", 0, 10):
        from_steps(steps[1:])


def test_rates_are_of_whole_steps_and_monotone() -> None:
    verify = Surface({1: Curve.of([(2, 1.0), (3, 0.8), (4, 2.0)])})
    jagged = TableCosts(verify, Surface({7: Curve.of([(2, 0.5)])}), Curve.of([(1, 1.0)]), 0.1)
    assert StepRates(jagged, 7, context=5).span(2, 4) == pytest.approx([1 / 2.5, 1 / 2.5, 1 / 3.5])


def test_a_dear_draft_pass_makes_longer_chains_worth_while() -> None:
    verify, prefill = Surface({1: Curve.of([(1, 1.0), (9, 5.0)])}), Curve.of([(1, 1.0)])
    lengths = [
        algorithm_1(np.full((1, 7), 0.6), StepRates(TableCosts(verify, draft, prefill), 7))[0]
        for draft in (None, Surface({7: Curve.of([(1, 10.0)])}))
    ]
    assert lengths == [1, 4]


def test_costs_are_in_units_of_the_pace_and_scale_with_it() -> None:
    """A machine that was half as fast for one of two equal steps: both took four times the pace of their moment."""
    slow = Step(0.0, 2, 10, 4, 6, 1, 3, 5, 0.4, 0.2, 0.02, 2.0, pace=0.5)
    quick = Step(3.0, 2, 10, 4, 6, 1, 3, 5, 0.2, 0.1, 0.01, 1.0, pace=0.25)
    costs = from_steps([slow, quick])
    assert costs.prefill_seconds(5) == pytest.approx(0.8) and costs.draft_seconds(2, 2) == pytest.approx(0.4)
    assert costs.schedule_seconds(2) == pytest.approx(0.04) and float(
        costs.verify_seconds(2, 6, 0)
    ) == pytest.approx(4.0)
    quicker = costs.scaled(0.25)
    assert quicker.schedule_seconds(2) == pytest.approx(0.01)
    assert float(quicker.verify_seconds(2, 6, 0)) == pytest.approx(1.0)


def test_noise_of_the_pace_does_not_make_steps_dearer() -> None:
    """Steps of 2 s each while the pace is measured as 1 and as 3: 4 in 4, where the ratios' mean would be 4 in 3."""
    assert float(Curve.of([(1, 2.0, 1.0), (1, 2.0, 3.0)])(1)) == 1.0
