import time

import pytest
import torch

from pipeline.decoding.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that starts at 10 s; every reading is 1 s after the one before."""
    readings = iter(range(10, 100))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(readings)))
    return Clock(torch.device("cpu"))


def test_laps_add_up_to_the_time(clock: Clock) -> None:
    assert [clock.lap(), clock.lap(), clock.since(), clock.lap(), clock.time()] == [1, 1, 1, 2, 5]


def test_a_pause_belongs_to_no_lap(clock: Clock) -> None:
    with clock.paused():  # from 11 to 13
        time.perf_counter()
    assert [clock.lap(), clock.time()] == [1, 3]
