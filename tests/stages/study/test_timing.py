import numpy as np

from stages.study.timing import Turns, lengths_of, timing_requests


def test_lengths_come_in_turn() -> None:
    turns = Turns([0, 1, 7])
    assert [turns(np.ones((2, 3))).tolist() for _ in range(4)] == [[0, 0], [1, 1], [3, 3], [0, 0]]
    assert (lengths_of(7), lengths_of(2), lengths_of(1)) == ([0, 1, 2, 4, 7], [0, 1, 2], [0, 1])


def test_places_of_short_requests_are_taken_by_others() -> None:
    made = timing_requests([(1, 2), (3,)], slots=8, tokens=32)
    assert [r.max_new_tokens for r in made] == [16, 16, *[32] * 6, 16, 16]
    assert [r.prompt for r in made[:3]] == [(1, 2), (3,), (1, 2)]
    assert [r.max_new_tokens for r in timing_requests([(1,)], slots=1, tokens=8)] == [4, 4]
