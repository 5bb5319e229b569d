import itertools

import numpy as np
import pytest
from tiny_errors import refused

from pipeline.decoding import scheduler
from pipeline.decoding.scheduler import ScheduleError, StepRate, algorithm_1, by_rank, capacity
from stages.study.points import Arm

PAPER = StepRate(np.array([1.0, 0.5, 0.45]))  # Appendix A: B = 1, 2, 3


def falling(last: int, seed: int = 0) -> StepRate:
    """Steps a second that fall ever faster, so that Theta has one maximum."""
    cost = 1 + np.random.default_rng(seed).uniform(0.01, 0.3) * np.arange(1, last + 1) ** 1.5
    return StepRate(1 / cost)


def theta(confidences: np.ndarray, lengths: tuple[int, ...], rate: StepRate) -> float:
    """tau SPS(B) of a choice of lengths, straight from the definition."""
    a = np.cumprod(confidences, 1)
    tau = sum(1 + a[r, :n].sum() for r, n in enumerate(lengths))
    return tau * rate.rates[len(lengths) + sum(lengths) - 1]


@pytest.mark.parametrize("seed", range(20))
def test_algorithm_1_is_the_best_of_all_length_vectors(seed: int) -> None:
    """On a unimodal Theta: brute force over every vector of lengths."""
    rng = np.random.default_rng(seed)
    confidences, rate = rng.uniform(0, 1, (3, 3)), falling(12, seed)
    best = max(itertools.product(range(4), repeat=3), key=lambda n: theta(confidences, n, rate))
    assert tuple(algorithm_1(confidences, rate)) == best
    assert capacity(confidences, rate) == sum(best)
    assert tuple(by_rank(confidences, sum(best))) == best


def test_by_hand() -> None:
    confidences = np.array([[0.9, 0.5], [0.6, 0.9]])  # a: .9 .45 / .6 .54
    rate = StepRate(np.array([1.0, 1.0, 0.9, 0.8, 0.75, 0.6]))
    # Theta: 2 x 1 = 2; 2.9 x .9 = 2.61; 3.5 x .8 = 2.8; 4.04 x .75 = 3.03; 4.49 x .6 = 2.694
    assert algorithm_1(confidences, rate).tolist() == [1, 2]


def test_it_stops_at_the_first_draft_that_does_not_improve() -> None:
    """Even where later ones would: that they would is known from later tokens only (Appendix A)."""
    confident = np.array([[0.8, 0.9]])
    assert algorithm_1(confident, PAPER).tolist() == [0], "1.8 x .5 = .9 < 1, although 2.52 x .45 = 1.134"
    assert capacity(confident, PAPER) == 2


def test_appendix_a() -> None:
    """Exact enumeration: the retrospective search gives (.85, .15), ours the target's (.7, .3)."""
    target, draft, second = (0.7, 0.3), (0.5, 0.5), (0.9, 0.0)  # c2 depends on the first token

    def first_token(lengths) -> list[float]:
        out = [0.0, 0.0]
        for token, chance in enumerate(draft):
            if lengths(np.array([[0.8, second[token]]]))[0] == 0:  # nothing verified: the target's own token
                out = [o + chance * t for o, t in zip(out, target, strict=True)]
                continue
            kept = min(1.0, target[token] / draft[token])
            residual = [max(t - d, 0.0) for t, d in zip(target, draft, strict=True)]
            out[token] += chance * kept
            out = [o + chance * (1 - kept) * r / sum(residual) for o, r in zip(out, residual, strict=True)]
        return out

    retrospective = first_token(lambda c: by_rank(c, capacity(c, PAPER)))
    assert retrospective == pytest.approx([0.85, 0.15])
    assert first_token(lambda c: algorithm_1(c, PAPER)) == pytest.approx([0.7, 0.3])
    for name in ("algorithm_1", "asynchronous"):  # as they are served
        for before in range(3):
            served = [
                scheduler.policy(name, PAPER) for _ in draft
            ]  # one for each of the two tokens, alike till now
            for each in served:
                for _ in range(before):
                    each(np.array([[0.8, 0.9]]))
            turns = iter(served)
            assert first_token(lambda c, turns=turns: next(turns)(c)) == pytest.approx([0.7, 0.3])


def served_after(name: str, rate: StepRate, steps: int, requests: int):
    """The lengths by the policy ``name`` of a run that has gone on for ``steps`` steps of equal confidences."""

    def lengths(confidences: np.ndarray) -> np.ndarray:
        made = scheduler.policy(name, rate, least=0.5)
        for _ in range(steps):
            made(np.full((requests, confidences.shape[1]), 0.8))
        return made(confidences)

    return lengths


@pytest.mark.parametrize("kind", ["continuous", "with equals"])
@pytest.mark.parametrize("name", ["algorithm_1", "asynchronous", "threshold"])
def test_a_decision_does_not_depend_on_the_token_or_later_ones(name: str, kind: str) -> None:
    """Confidences after draft j depend on token j: whatever they are, the decision about j stays. With many equal ones
    that holds only if no sort decides among equals by what else there is.
    """
    rng, requests, drafts = np.random.default_rng(5), 24 if kind == "with equals" else 5, 5
    jagged = StepRate(1 / (20 + np.cumsum(rng.choice([0.0, 0.0, 1.5], requests * (drafts + 1)))))
    decide = served_after(name, jagged, 2, requests)
    draw = (
        rng.choice([0.4, 0.9, 1.0], (3, requests, drafts))
        if kind == "with equals"
        else rng.uniform(0, 1, (3, 5, 5))
    )
    for confidences in draw:
        lengths = decide(confidences)
        assert 0 < lengths.sum() < lengths.size * drafts
        for r, j in itertools.product(range(requests), range(drafts)):
            for other in (0.0, 1.0):
                changed = confidences.copy()
                changed[r, j + 1 :] = np.maximum(other, scheduler.LEAST)
                assert (decide(changed)[r] > j) == (lengths[r] > j)


def test_equal_drafts_are_told_apart_by_their_places_alone() -> None:
    """A sort may place equals by what else there is: numpy's own decided 1 in 100 of these by a later confidence."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        confidences = rng.choice([0.25, 0.5, 1.0], (64, 5))
        ranked = by_rank(confidences, 106)
        for r, j in itertools.product(range(0, 64, 4), range(4)):
            changed = confidences.copy()
            changed[r, j + 1 :] = rng.choice([0.25, 1.0])
            assert (by_rank(changed, 106)[r] > j) == (ranked[r] > j)


@pytest.mark.parametrize("seed", range(5))
def test_over_a_convex_curve_the_served_algorithm_1_is_that_of_the_paper(seed: int) -> None:
    confidences, rate = np.random.default_rng(seed).uniform(0, 1, (4, 5)), falling(24, seed)
    assert (
        scheduler.policy("algorithm_1", rate)(confidences).tolist() == algorithm_1(confidences, rate).tolist()
    )


def test_equal_drafts_are_admitted_in_order() -> None:
    """Never j without j-1, also where a does not fall."""
    assert by_rank(np.ones((2, 3)), 4).tolist() == [2, 2]
    assert by_rank(np.array([[1.0, 1.0, 1.0], [0.9, 0.9, 0.0]]), 4).tolist() == [3, 1]


def test_the_asynchronous_form_takes_the_capacity_of_two_steps_before() -> None:
    rate = StepRate(np.array([1.0, 0.9, 0.8]))
    policy = scheduler.Asynchronous(rate, start=1)
    sure, doubtful = np.array([[0.9, 0.9]]), np.array([[0.05, 0.9]])
    # capacities: sure 2 (1, 1.71, 2.168), doubtful 0 (1, .945, .876)
    seen = [policy(c).tolist() for c in (sure, doubtful, doubtful, sure, sure)]
    assert seen == [[1], [1], [2], [0], [0]]


def test_the_largest_convex_curve_below() -> None:
    assert scheduler.convex(np.array([1.0, 3.0, 2.0, 2.0, 4.0])).tolist() == pytest.approx(
        [1.0, 4 / 3, 5 / 3, 2.0, 4.0]
    )
    assert scheduler.convex(np.array([1.0, 2.0, 4.0])).tolist() == [1.0, 2.0, 4.0]
    assert scheduler.convex(np.array([3.0])).tolist() == [3.0]


def test_a_bump_in_the_measured_curve_does_not_stop_algorithm_1() -> None:
    """Seconds 1, 1.5, 1.5, 1.5: the first draft alone does not pay (1.5 / 1.5), three do (3.0 / 1.5)."""
    rate, confidences = StepRate(1 / np.array([1.0, 1.5, 1.5, 1.5])), np.array([[0.5, 1.0, 1.0]])
    assert algorithm_1(confidences, rate).tolist() == [0]
    assert scheduler.policy("algorithm_1", rate)(confidences).tolist() == [3]


def test_what_is_paid_for_is_used() -> None:
    """Seconds 1, 2, 2, 2 (convex 1, 4/3, 5/3, 2), a = .4, .3, .2: over the convex curve the second draft does not pay,
    but once the first is verified it costs nothing: 1.9 / 2 with all, 1.4 / 2 with one.
    """
    rate, confidences = StepRate(1 / np.array([1.0, 2.0, 2.0, 2.0])), np.array([[0.4, 0.75, 2 / 3]])
    assert scheduler.policy("algorithm_1", rate)(confidences).tolist() == [3]
    assert algorithm_1(confidences, scheduler.Convex(rate)).tolist() == [1]
    assert algorithm_1(confidences, rate).tolist() == [0]


def test_an_asynchronous_capacity_is_a_share_of_the_candidates() -> None:
    """A request near its limit has fewer candidates: that is no reason to verify less of the next one."""
    policy = scheduler.Asynchronous(StepRate(np.ones(9)))  # verifying is free: everything is worth it
    whole, near_its_limit = np.full((1, 4), 0.5), np.array([[0.5, 0.0, 0.0, 0.0]])
    seen = [policy(c).tolist() for c in (near_its_limit, near_its_limit, whole, near_its_limit, whole)]
    assert seen == [[1], [1], [4], [1], [4]]


def test_candidates_are_told_by_the_room_alone() -> None:
    """However unlikely a draft is said to be, it stays a candidate: the number of them must not tell of confidences."""
    given = scheduler.candidates(np.array([[0.0, 0.5], [0.0, 0.5]]), np.array([2, 1]))
    assert given.tolist() == [[1e-9, 0.5], [1e-9, 0.0]]


def test_baselines() -> None:
    confidences = np.array([[0.9, 0.2, 0.9], [0.1, 0.9, 0.9]])
    assert scheduler.threshold(confidences, 0.5).tolist() == [1, 0]
    assert scheduler.fixed(confidences, 2).tolist() == [2, 2]
    assert scheduler.fixed(confidences, 9).tolist() == [3, 3]
    assert scheduler.policy("none")(confidences).tolist() == [0, 0]


@pytest.mark.parametrize(
    "run,named",
    [
        (lambda: algorithm_1(np.array([[0.5, np.nan]]), PAPER), ["confidences", "[nan]", (1, 2)]),
        (lambda: algorithm_1(np.array([[1.5]]), PAPER), ["confidences", [1.5]]),
        (lambda: algorithm_1(np.ones(2), PAPER), ["confidences", (2,)]),
        (lambda: algorithm_1(np.ones((2, 2)), PAPER), ["SPS table", 3, 6]),
        (lambda: StepRate(np.array([1.0, 0.0])), ["SPS table", [0.0], (2,)]),
        (lambda: StepRate(np.array([])), ["SPS table", (0,)]),
        (lambda: scheduler.policy("algorithm_1"), ["algorithm_1", "evaluate.profile=true"]),
        (lambda: scheduler.policy("threshold", confident=False), ["threshold", "none", "fixed"]),
        (lambda: Arm("threshold", 7).policy(PAPER, confident=False), ["threshold", "none", "fixed"]),
        (lambda: scheduler.policy("best"), ["none", "asynchronous", "best"]),
    ],
)
def test_what_cannot_be_scheduled_is_named(run, named: list) -> None:
    with refused(ScheduleError, *named):
        run()


def test_no_requests() -> None:
    assert algorithm_1(np.zeros((0, 3)), PAPER).tolist() == []
