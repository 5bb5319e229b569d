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

RECIPE = Recipe(seed=0, anchors=4, drafts=3, decay=3.0)
COINS = dataclasses.replace(RECIPE, coins=True)


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
    assert torch.equal(micro.supervision.weights, expected.weights) and micro.supervision.coins is None


def test_only_trained_drafts_weigh_and_the_step_s_weight_says_so(cached) -> None:
    """MTP: three drafts a block, of which one has a loss."""
    samples = Samples(cached.cache.path, "train", dataclasses.replace(RECIPE, trained=1))
    micro = samples.micro([1], step=0)
    assert micro.supervision.mask.shape == (1, 4, 3) and micro.supervision.mask[..., 1:].any()
    assert micro.supervision.weights.sum() == samples.weight([1], 0) == 4


@pytest.mark.parametrize(
    "taps,columns", [((0,), slice(0, 32)), ((1,), slice(32, 64)), ((0, 1), slice(0, 64))]
)
def test_the_columns_of_the_taps_that_are_read(cached, taps: tuple[int, ...], columns: slice) -> None:
    """The cache holds two taps of width 32."""
    samples = Samples(cached.cache.path, "train", dataclasses.replace(RECIPE, taps=taps))
    micro = samples.micro([2], step=0)
    assert torch.equal(micro.batch.hidden[0], samples.reader.read(2).hidden[:, columns])
    assert samples.filler().batch.hidden.shape == (1, 3, 32 * len(taps))


def test_a_drafter_without_taps_reads_none(cached) -> None:
    samples = Samples(cached.cache.path, "train", dataclasses.replace(RECIPE, taps=()))
    assert samples.micro([2], step=0).batch.hidden.shape == (1, 9, 0)
    assert samples.filler().batch.hidden.shape == (1, 3, 0)


def test_columns_in_the_asked_order() -> None:
    hidden = torch.arange(12.0).view(2, 6)  # two tokens, three taps of width 2
    recipe = dataclasses.replace(RECIPE, taps=(2, 0))
    assert recipe.columns(hidden, 3).tolist() == [[4.0, 5.0, 0.0, 1.0], [10.0, 11.0, 6.0, 7.0]]
    assert RECIPE.columns(hidden, 3) is hidden


def test_coins_follow_from_sample_and_step_alone(cached) -> None:
    """The same whatever batch, rank or resume the sample comes in; others at another step; fixed for held-out ones."""
    samples = Samples(cached.cache.path, "train", COINS)
    together, alone = samples.micro([1, 2, 3], step=5), samples.micro([3], step=5)
    drawn = alone.supervision.coins[0]
    assert drawn.dtype == torch.float32 and drawn.shape == (len(samples.anchors(3, 5)), 3)
    assert torch.equal(together.supervision.coins[2, : len(drawn)], drawn)
    again = Samples(cached.cache.path, "train", COINS).micro([3], step=5)
    assert torch.equal(again.supervision.coins[0], drawn)
    assert not torch.equal(samples.micro([3], step=6).supervision.coins[0], drawn)
    other = Samples(cached.cache.path, "train", dataclasses.replace(COINS, seed=1)).micro([3], step=5)
    assert not torch.equal(other.supervision.coins[0], drawn)
    assert drawn.min() >= 0 and drawn.max() < 1
    heldout = [samples.micro([3], None).supervision.coins for _ in range(2)]
    assert torch.equal(*heldout) and not torch.equal(heldout[0][0], drawn)


def test_coins_are_spread_evenly(cached) -> None:
    samples = Samples(cached.cache.path, "train", dataclasses.replace(COINS, anchors=30))
    coins = torch.cat([samples.micro([1], step).supervision.coins.flatten() for step in range(30)])
    assert len(coins) > 2000
    assert coins.mean().item() == pytest.approx(0.5, abs=0.03)
    assert (coins < 0.25).float().mean().item() == pytest.approx(0.25, abs=0.04)


def test_a_filler_supervises_one_block_that_weighs_nothing(cached) -> None:
    """Pitfall 30: it goes through the whole draft, and adds nothing."""
    micro = Samples(cached.cache.path, "train", RECIPE).micro([], step=0)
    assert micro.batch.samples.tolist() == [FILLER]
    assert micro.batch.hidden.shape == (1, 3, 64) and micro.batch.last_hidden.shape == (1, 3, 32)
    assert micro.blocks.anchors.tolist() == [[1]], "a chain reads the state before its anchor"
    assert micro.supervision.mask.sum() == 1
    assert micro.supervision.weights.sum() == 0 and micro.supervision.coins is None
    coins = Samples(cached.cache.path, "train", COINS).filler().supervision.coins
    assert coins is not None and coins.shape == (1, 1, 3)


def equal(a: Micro, b: Micro) -> bool:
    pairs = zip(dataclasses.astuple(a), dataclasses.astuple(b), strict=True)
    parts = [
        (x, y) for one, other in pairs if isinstance(one, tuple) for x, y in zip(one, other, strict=True)
    ]
    same = [x is y is None or torch.equal(x, y) for x, y in parts]
    return all(same) and a.step_weight == b.step_weight


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])  # each imports for seconds
def test_workers_read_what_the_main_process_reads_and_a_resume_goes_on(cached, workers: int) -> None:
    """Pitfalls 23 (spawned) and 34 (nothing to restore but the step)."""
    shares = StepShares(Samples(cached.cache.path, "train", COINS), Sharing(0, 3, 1, 2), rank=1)
    with read_ahead(shares, 0, 4, workers=0, pin=False) as stream:
        here = list(stream)
    assert len(here) == 8
    with read_ahead(shares, 2, 4, workers=workers, pin=False) as stream:
        spawned = list(stream)
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
