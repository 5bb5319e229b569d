"""The simulation against cases counted by hand; the seconds of a step are 1 a pass unless said otherwise."""

import numpy as np
import pytest
from tiny_errors import refused

from pipeline.decoding.scheduler import StepRate, policy
from pipeline.decoding.single import Round
from pipeline.decoding.steps import Step, Times
from stages.study.costs import Curve, Surface, TableCosts
from stages.study.simulation import (
    Load,
    Pool,
    RecordedAnswer,
    SimulationError,
    answer_of_rounds,
    cycle,
    poisson,
    simulate,
)

ONE = Curve.of([(1, 1.0)])
UNIT = TableCosts(
    Surface({1: ONE}),
    Surface({1: Curve.of([(1, 0.25)])}),
    Curve.of([(1, 0.5)]),
    schedule=Curve.of([(1, 0.125)]),
)


def answer(held: list[int], prompt: int = 4, limit: int = 99, drafts: int = 3) -> RecordedAnswer:
    """An ideal head: confidence 1 for what holds, 0 for what does not."""
    ideal = (np.arange(drafts) < np.array(held)[:, None]).astype(float)
    return RecordedAnswer(prompt, limit, ideal, np.array(held))


def random_pool(seed: int = 0, answers: int = 12) -> Pool:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(answers):
        left = np.arange(int(rng.integers(1, 20)), 0, -1)
        made.append(
            answer(np.minimum(rng.integers(0, 4, len(left)), left).tolist(), prompt=int(rng.integers(1, 30)))
        )
    return Pool.of(made)


def test_one_request_by_hand() -> None:
    # Tokens 1 | 2 3 | 4 | 5 6: the answer has 6 tokens, the third chain is cut by its end.
    pool = Pool.of([answer([1, 9, 0, 2, 9])])
    served = simulate(pool, cycle(pool, 1), UNIT, policy("fixed", length=2), slots=1)
    assert served.steps == [
        Step(0.0, 1, 4, 3, 3, 1, 3, 4, 0.5, 0.25, 0.125, 1.0),
        Step(1.875, 1, 6, 3, 3, 0, 1, 0, 0.0, 0.25, 0.125, 1.0),
        Step(3.25, 1, 7, 3, 3, 2, 2, 0, 0.0, 0.25, 0.125, 1.0),
    ]
    assert served.times == [Times(0, 6, 0.0, 0.0, 0.5, 4.625)]


def test_a_chain_is_no_longer_than_what_may_follow_it() -> None:
    pool = Pool.of(
        [answer([3, 3, 3], limit=4)]
    )  # asked for 4 tokens: 1 is out, 2 drafts and the target's own
    (step,) = simulate(pool, cycle(pool, 1), UNIT, policy("fixed", length=3), slots=1).steps
    assert (step.drafted, step.verified, step.accepted, step.emitted) == (2, 3, 2, 4)


def test_prompts_are_read_in_chunks_and_slots_are_taken_by_those_who_wait() -> None:
    pool = Pool.of([answer([0], prompt=5), answer([], prompt=2), answer([0], prompt=3)])
    served = simulate(pool, cycle(pool, 3), UNIT, None, slots=2, drafts=0, prefill_tokens=4)
    seen = [(s.began, s.requests, s.verified, s.emitted, s.prefilled) for s in served.steps]
    assert seen == [
        (0.0, 0, 0, 0, 4),  # 4 of the first prompt
        (
            0.5,
            1,
            1,
            3,
            3,
        ),  # its last token, both of the second: two first tokens, and one that completes the first
        (2.0, 1, 1, 2, 3),
    ]
    assert [(t.admitted, t.first_token, t.finished) for t in served.times] == [
        (0.0, 1.0, 2.0), (0.0, 1.0, 2.0), (2.0, 2.5, 3.5),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["none", "fixed", "threshold", "algorithm_1", "asynchronous"])
@pytest.mark.parametrize("slots", [1, 5, 64])
def test_tokens_are_conserved_whatever_the_schedule(name: str, slots: int) -> None:
    pool = random_pool()
    load = cycle(pool, 40, poisson(1.0, 40, seed=1), seed=3)
    rate = StepRate(1 / (1 + 0.1 * np.arange(1, 400)))
    served = simulate(pool, load, UNIT, policy(name, rate, length=3, least=0.5), slots, prefill_tokens=16)
    asked = pool.lengths[load.answers]
    assert [t.tokens for t in served.times] == asked.tolist()
    assert sum(s.emitted for s in served.steps) == asked.sum()
    assert sum(s.prefilled for s in served.steps) == pool.prompts[load.answers].sum()
    assert all(s.requests <= slots and s.accepted <= s.verified - s.requests for s in served.steps)
    assert all(t.arrival <= t.admitted < t.first_token <= t.finished for t in served.times)
    ends = [
        s.began + s.prefill_seconds + s.draft_seconds + s.schedule_seconds + s.verify_seconds
        for s in served.steps
    ]
    assert all(end <= s.began + 1e-9 for end, s in zip(ends, served.steps[1:], strict=False))


def test_an_ideal_head_verifies_nothing_in_vain() -> None:
    pool = random_pool()
    served = simulate(pool, cycle(pool, 30), UNIT, policy("threshold", least=0.5), slots=4)
    assert sum(s.accepted for s in served.steps) == sum(s.verified - s.requests for s in served.steps)


def test_the_same_seed_gives_the_same_run() -> None:
    pool = random_pool()

    def run(seed: int):
        load = cycle(pool, 20, poisson(2.0, 20, seed), seed)
        return simulate(pool, load, UNIT, policy("fixed", length=2), slots=3)

    assert run(5) == run(5) and run(5) != run(6)


def test_poisson_arrivals() -> None:
    arrivals = poisson(4.0, 20_000, seed=0)
    gaps = np.diff(arrivals)
    assert (
        gaps.min() > 0
        and gaps.mean() == pytest.approx(0.25, rel=0.03)
        and gaps.std() == pytest.approx(0.25, rel=0.03)
    )


def test_nobody_is_served_before_arriving() -> None:
    pool = Pool.of([answer([0])])
    served = simulate(pool, Load(np.array([0, 0]), np.array([3.0, 10.0])), UNIT, None, slots=2, drafts=0)
    assert [s.began for s in served.steps] == [3.0, 10.0]


def test_rounds_count_by_the_tokens_that_they_brought() -> None:
    rounds = [
        Round(4, 0, 0, 0, [7], None, 0.0, 0.0),
        Round(4, 3, 3, 2, [1, 2, 3], [0.9, 0.8, 0.1], 0.0, 0.0),
        Round(7, 2, 2, 0, [4], [0.5, 0.4], 0.0, 0.0),
    ]
    made = answer_of_rounds(4, 16, rounds, drafts=3)
    assert made.length == 5 and made.held.tolist() == [2, 2, 2, 0]
    assert made.confidences.tolist() == [[0.9, 0.8, 0.1]] * 3 + [[0.5, 0.4, 0.0]]
    assert np.isnan(
        answer_of_rounds(4, 16, [rounds[0], Round(4, 2, 2, 0, [1], None, 0, 0)], 2).confidences
    ).all()


def test_refusals() -> None:
    pool = Pool.of([answer([1])])
    with refused(SimulationError, "slots=0", "prefill_tokens=512", "requests=1"):
        simulate(pool, cycle(pool, 1), UNIT, None, slots=0)
    with refused(SimulationError, "drafts=4", 3):
        simulate(pool, cycle(pool, 1), UNIT, None, slots=1, drafts=4)
    with refused(SimulationError, "pool", [2, 3]):
        Pool.of([answer([1]), answer([1], drafts=2)])
