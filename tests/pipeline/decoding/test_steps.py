"""What one request saw of the engine, in figures."""

import pytest

from pipeline.decoding.steps import Request, Times


@pytest.mark.parametrize(("tokens", "speed"), [(1, None), (2, 0.5), (9, 4.0)])
def test_the_speed_that_a_user_sees_begins_after_the_first_token(tokens, speed):
    """Neither the wait for a slot nor the prefill counts."""
    times = Times(3, tokens, arrival=0.0, admitted=2.0, first_token=7.0, finished=9.0)
    assert times.speed == speed


def test_a_request_arrives_at_the_beginning_unless_it_says_when():
    assert Request(0, (1, 2), 8).arrival == 0.0
