import dataclasses
import pickle
from collections import Counter

import numpy as np
import pytest
import torch

from pipeline.drafts.base import supervise
from stages.train.batches import (
    FILLER,
    Micro,
    Recipe,
    Samples,
    Sharing,
    StepShares,
    deal,
    heldout_micros,
    heldout_numbers,
    read_ahead,
    step_positions,
)

RECIPE = Recipe(seed=0, anchors=4, block_size=3, decay=3.0)


def test_every_epoch_takes_every_sample_once() -> None:
    sharing = Sharing(seed=1, global_batch=4, micro_batch=1, world_size=1)
    stream = np.concatenate([step_positions(6, sharing, step) for step in range(6)])  # 24 = 4 epochs of 6
    epochs = stream.reshape(4, 6)
    assert all(sorted(epoch) == list(range(6)) for epoch in epochs.tolist())
    assert len({tuple(epoch) for epoch in epochs.tolist()}) > 1
    other = Sharing(seed=2, global_batch=4, micro_batch=1, world_size=1)
    assert step_positions(6, other, 0).tolist() != stream[:4].tolist()


def test_deal_is_longest_first_and_even() -> None:
    sharing = Sharing(seed=0, global_batch=7, micro_batch=2, world_size=2)
    assert sharing.micro_steps == 2
    dealt = deal(np.array([5, 9, 1, 7, 3, 8, 2]), sharing, sharing.micro_steps)
    assert [[rank.tolist() for rank in micro] for micro in dealt] == [[[1, 3], [5, 0]], [[4, 2], [6]]]


def test_the_last_micro_batch_of_a_rank_may_be_empty() -> None:
    sharing = Sharing(seed=0, global_batch=3, micro_batch=1, world_size=2)
    dealt = deal(np.array([5, 6, 7]), sharing, sharing.micro_steps)
    assert [[rank.tolist() for rank in micro] for micro in dealt] == [[[2], [1]], [[0], []]]


@pytest.mark.parametrize(("world", "micro"), [(1, 1), (1, 4), (2, 1), (3, 2), (8, 1)])
def test_ranks_together_take_the_step_whatever_their_number(cached, world: int, micro: int) -> None:
    samples = Samples(cached.cache.path, "train", RECIPE)
    for step in (0, 1, 5):
        taken: Counter[int] = Counter()
        counts = set()
        for rank in range(world):
            shares = StepShares(samples, Sharing(0, 3, micro, world), rank)
            counts.add(len(shares.shares(step)))
            taken.update(n for share in shares.shares(step) for n in share)
        assert len(counts) == 1  # no rank skips a forward pass
        assert taken == Counter(shares.step_numbers(step).tolist())


def test_step_weights_of_all_ranks_are_those_of_one(cached) -> None:
    """Pitfall 29: known before the forward pass, and the sum of what the micro-batches really hold."""
    samples = Samples(cached.cache.path, "train", RECIPE)
    whole = StepShares(samples, Sharing(0, 3, 4, 1), 0)[0]
    assert whole.step_weight == pytest.approx(float(whole.supervision.weights.double().sum()), abs=1e-12)
    parts = [StepShares(samples, Sharing(0, 3, 1, 2), rank)[0].step_weight for rank in range(2)]
    assert sum(parts) == pytest.approx(whole.step_weight, abs=1e-12)


def test_a_micro_batch_holds_what_the_cache_holds(cached) -> None:
    samples = Samples(cached.cache.path, "train", RECIPE)
    micro = samples.micro([2, 1], step=7)
    assert micro.batch.lengths.tolist() == [9, 30]
    assert micro.batch.samples.tolist() == [2, 1]
    assert micro.batch.input_ids.shape == (2, 30)
    for row, number in enumerate((2, 1)):
        sample, length = samples.reader.read(number), len(samples.reader.read(number).input_ids)
        for name in ("input_ids", "loss_mask", "hidden", "last_hidden"):
            assert torch.equal(getattr(micro.batch, name)[row, :length], getattr(sample, name))
            assert not getattr(micro.batch, name)[row, length:].any()
        assert torch.equal(micro.blocks.anchors[row], samples.anchors(number, 7))
    expected = supervise(micro.batch, micro.blocks, 3, 3.0)
    assert torch.equal(micro.supervision.weights, expected.weights)


def test_a_filler_supervises_one_block_that_weighs_nothing(cached) -> None:
    """Pitfall 30: it goes through the whole draft, and adds nothing."""
    micro = Samples(cached.cache.path, "train", RECIPE).micro([], step=0)
    assert micro.batch.samples.tolist() == [FILLER]
    assert micro.batch.hidden.shape == (1, 2, 64)
    assert micro.supervision.mask.sum() == 1
    assert micro.supervision.weights.sum() == 0


def equal(a: Micro, b: Micro) -> bool:
    pairs = zip(dataclasses.astuple(a), dataclasses.astuple(b), strict=True)
    parts = [
        (x, y) for one, other in pairs if isinstance(one, tuple) for x, y in zip(one, other, strict=True)
    ]
    return all(torch.equal(x, y) for x, y in parts) and a.step_weight == b.step_weight


def test_workers_read_what_the_main_process_reads_and_a_resume_goes_on(cached) -> None:
    """Pitfalls 23 (spawned) and 34 (nothing to restore but the step)."""
    shares = StepShares(Samples(cached.cache.path, "train", RECIPE), Sharing(0, 3, 1, 2), rank=1)
    here = list(read_ahead(shares, 0, 4, workers=0, pin=False))
    assert len(here) == 8
    spawned = list(read_ahead(shares, 2, 4, workers=2, pin=False))
    assert len(spawned) == 4
    assert all(equal(a, b) for a, b in zip(spawned, here[4:], strict=True))


def test_samples_travel_to_workers_without_an_open_reader(cached) -> None:
    samples = Samples(cached.cache.path, "train", RECIPE)
    samples.reader.read(0)
    assert len(pickle.dumps(samples)) < 1000
    assert torch.equal(pickle.loads(pickle.dumps(samples)).anchors(1, 3), samples.anchors(1, 3))  # noqa: S301


def test_heldout_samples_and_anchors_are_fixed(cached) -> None:
    samples = Samples(cached.cache.path, "heldout", RECIPE)
    numbers = heldout_numbers(samples, 10)
    assert numbers == [5, 6]
    assert len(heldout_numbers(samples, 1)) == 1
    sharing = Sharing(seed=0, global_batch=1, micro_batch=1, world_size=1)
    first, second = (list(heldout_micros(samples, numbers, sharing, 0)) for _ in range(2))
    assert [m.batch.samples.tolist() for m in first] == [[5], [6]]
    assert all(equal(a, b) for a, b in zip(first, second, strict=True))


def test_ranks_evaluate_alike_often(cached) -> None:
    samples = Samples(cached.cache.path, "heldout", RECIPE)
    seen = []
    for rank in range(3):
        micros = list(heldout_micros(samples, [5, 6], Sharing(0, 1, 1, 3), rank))
        assert len(micros) == 1
        seen += micros[0].batch.samples.tolist()
    assert sorted(seen) == [FILLER, 5, 6]
