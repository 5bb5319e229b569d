import pytest
import tiny
import torch

from stages.compare import latency
from stages.compare.latency import from_pairs, measure


def test_the_share_is_the_median_of_pairs() -> None:
    """A machine that is ten times slower for one pair, or in one call, does not move it."""
    found = from_pairs([(3.0, 4.0), (30.0, 40.0), (3.0, 40.0)])
    assert (found.share, found.draft_ms, found.parallel_ms) == (0.25, 40_000.0, 3_000.0)


def test_a_share_below_zero_is_noise() -> None:
    assert from_pairs([(1.01, 1.0)]).share == 0.0


def test_more_drafts_take_more_left_to_right_steps() -> None:
    """Counted, not timed: a whole proposal of 5 drafts asks the sequential head 5 times, the parallel pass never."""
    draft = tiny.draft(block_size=5).eval()
    calls = {"head": 0, "parallel": 0}
    head, begin = draft.markov_head.bias, draft.begin

    def counted(features):
        calls["head"] += 1
        return head(features)

    def begun(states, anchors):
        calls["parallel"] += 1
        assert [state.length for state in states] == [latency.CONTEXT]
        return begin(states, anchors)

    draft.markov_head.bias, draft.begin = counted, begun
    found = measure(draft, calls=2)
    rounds = 2 + latency.WARM_UP
    assert calls == {"head": 5 * rounds, "parallel": 2 * rounds}  # the whole has a parallel pass too
    assert 0 <= found.share < 1
    assert found.parallel_ms > 0 and found.draft_ms > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_drafts_of_either_type(dtype: torch.dtype) -> None:
    assert measure(tiny.draft().eval().to(dtype), calls=1).draft_ms > 0
