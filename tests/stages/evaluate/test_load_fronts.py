import pytest

from stages.evaluate.load_fronts import front, offered, shortfall, sla

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
    assert shortfall(FRONT, FRONT) == 0
    assert shortfall(FRONT, [(15.0, 100.0)]) == pytest.approx(0.05)
    assert shortfall(FRONT, [(50.0, 10.0)]) == pytest.approx(0.2), "speed that is out of reach"
    # Half-way between the points of the reference: (25, 100), where 80 is offered.
    assert shortfall(FRONT, [(10.0, 100.0), (40.0, 50.0)]) == 0
    assert shortfall(FRONT, [(30.0, 60.0)]) == pytest.approx(1 - 70 / 60), "ahead"
