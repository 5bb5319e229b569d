import pytest

from stages.study.fronts import front, offered, shortfall, sla

POINTS = [(10.0, 100.0), (40.0, 50.0), (20.0, 90.0), (20.0, 80.0), (15.0, 60.0), (10.0, 100.0)]
FRONT = [(10.0, 100.0), (20.0, 90.0), (40.0, 50.0)]


def test_front() -> None:
    assert front(POINTS) == FRONT
    assert front([]) == []


def test_what_is_offered_at_a_speed() -> None:
    assert [offered(FRONT, s) for s in (1.0, 10.0, 15.0, 30.0, 40.0, 40.1)] == [100, 100, 95, 70, 50, None]
    assert sla(FRONT, [20, 80]) == {"20": 90.0, "80": None}
    assert offered([], 1.0) is None


def test_shortfall() -> None:
    assert shortfall(FRONT, FRONT) == pytest.approx(0)
    assert shortfall(FRONT, [(10.0, 125.0)]) == pytest.approx(0.2), "throughput that is out of reach"
    assert shortfall(FRONT, [(50.0, 10.0)]) == pytest.approx(0.2), "speed that is out of reach"
    # The front has 90 at 20 and 50 at 40: 90 - 2 (25 f - 20) = 100 f.
    assert shortfall(FRONT, [(25.0, 100.0)]) == pytest.approx(1 - 13 / 15)
    # Half-way between these lies (25, 100) again.
    assert shortfall([*FRONT[:1], (25.0, 80.0), *FRONT[2:]], [(10.0, 100.0), (40.0, 50.0)]) == pytest.approx(
        0
    )
    assert shortfall(FRONT, [(15.0, 50.0)]) == pytest.approx(1 - 130 / 80), "ahead in both"


def test_a_small_loss_in_both_is_small_on_a_steep_front() -> None:
    steep = [(100.0, 80.0), (102.0, 40.0)]
    assert shortfall([(0.99 * s, 0.99 * t) for s, t in steep], steep) == pytest.approx(0.01)
