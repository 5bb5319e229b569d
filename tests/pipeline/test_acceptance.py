"""Every formula on rounds small enough to be worked out by hand, and intervals that mean what they say."""

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import bootstrap

from data_specs.evaluation import SCHEMA
from data_specs.results.records import to_json
from pipeline.acceptance import average, by_context, figures, from_sums, summary


def told_of(metrics):
    return to_json(summary(metrics))


def row(prompt, number, drafted, accepted, **changes):
    values = {
        "benchmark": "b", "prompt": prompt, "key": str(prompt), "turn": 0, "mode": "draft", "round": number,
        "context": 10 + number, "drafted": drafted, "proposed": drafted, "accepted": accepted,
        "emitted": accepted + 1, "tokens": list(range(accepted + 1)), "confidences": None,
        "draft_seconds": 0.01, "verify_seconds": 0.03, "finish": None,
    }  # fmt: skip
    return values | changes


def table(rows):
    return pa.Table.from_pylist(rows, SCHEMA)


def value(found, name):
    return found.metrics[name][0].tolist()


@pytest.fixture
def hand():
    """Two prompts: rounds (drafted, accepted) 3/2, 3/0 and 3/3, 1/1; plain: one token a round."""
    drafted = [
        row(0, 0, 0, 0, draft_seconds=0.0), row(0, 1, 3, 2), row(0, 2, 3, 0),
        row(1, 0, 0, 0, draft_seconds=0.0), row(1, 1, 3, 3), row(1, 2, 1, 1),
    ]  # fmt: skip
    plain = [
        row(p, n, 0, 0, mode="plain", draft_seconds=0.0, tokens=[t])
        for p, answer in enumerate(([0, 0, 1, 2, 0], [0, 0, 1, 2, 3, 0, 9]))
        for n, t in enumerate(answer)
    ]
    return table(drafted + plain)


def test_formulas(hand):
    found = figures(hand, positions=3, resamples=0)
    assert found.prompts == 2
    assert found.counts == {
        "answers": 2, "rounds": 4, "emitted": 10, "proposed": 10, "accepted": 6, "drafted": 10,
        "tokens": 12, "plain_tokens": 12,
    }  # fmt: skip
    assert value(found, "accepted_length") == 2.5  # (3 + 1 + 4 + 2) / 4, the bonus counted (pitfall 38)
    assert value(found, "acceptance_rate") == 0.6  # (2 + 0 + 3 + 1) / (3 + 3 + 3 + 1)
    assert value(found, "verify_rate") == pytest.approx(10 / 14)  # of 4 + 4 + 4 + 2 verified positions
    assert value(found, "drafted_length") == 2.5
    assert value(found, "survival") == [0.75, 0.5, 0.25]
    # k=1: 3 of 4 rounds. k=2: reached and proposed in 2 rounds (3/2 and 3/3), both held. k=3: 1 of those 2.
    assert value(found, "conditional") == [0.75, 1.0, 0.5]
    assert value(found, "draft_share") == pytest.approx(0.25)
    assert value(found, "verify_share") == pytest.approx(0.75)
    assert value(found, "draft_ms") == pytest.approx(10)
    assert value(found, "verify_ms") == pytest.approx(30)
    # 12 tokens in 6 runs of the target of 0.03 s and 4 proposals of 0.01 s; plain: 12 runs of 0.03 s.
    assert value(found, "tokens_per_second") == pytest.approx(12 / 0.22)
    assert value(found, "plain_tokens_per_second") == pytest.approx(12 / 0.36)
    assert value(found, "speedup") == pytest.approx(0.36 / 0.22)
    assert value(found, "same_answers") == 0.5  # the second answer differs in its last token


def test_drafts_after_eos_do_not_count_as_rejected():
    """A chain of 3 whose first draft ends the answer: proposed 1, accepted 1, emitted 1 (pitfall 39)."""
    found = figures(table([row(0, 1, 3, 1, proposed=1, emitted=1, tokens=[9])]), 3, 0)
    assert value(found, "acceptance_rate") == 1.0
    assert value(found, "accepted_length") == 1.0
    assert value(found, "verify_rate") == 0.25
    assert np.isnan(found.metrics["conditional"][0][1])  # position 2 was not judged


def test_without_a_baseline_there_is_no_speedup():
    told = told_of(figures(table([row(0, 1, 3, 1), row(1, 1, 3, 1)]), 3, 50).metrics)
    assert told["speedup"] == {"value": None, "interval": None}
    assert told["same_answers"] == {"value": None, "interval": None}
    assert told["accepted_length"] == {"value": 2.0, "interval": [2.0, 2.0]}


def test_one_prompt_has_no_interval():
    """One prompt can mislead by half: no interval is made up from its rounds (pitfall 42)."""
    told = told_of(figures(table([row(0, 1, 3, 0), row(0, 2, 3, 3)]), 3, 100).metrics)
    assert told["accepted_length"] == {"value": 2.5, "interval": None}


def many(prompts, seed):
    """Prompts whose rounds are alike inside and differ between: mean accepted 0 .. 6 by prompt."""
    random = np.random.default_rng(seed)
    rows = []
    for prompt in range(prompts):
        level = random.uniform(0, 6)
        rows += [
            row(prompt, n, 7, int(np.clip(round(random.normal(level, 0.3)), 0, 7))) for n in range(1, 11)
        ]
    return table(rows)


def test_the_interval_covers_the_true_mean_95_percent_of_the_time():
    """True mean 4 (accepted 3 on average, and the bonus); an interval over rounds would cover it far less."""
    covered = 0
    for seed in range(100):
        low, high = told_of(figures(many(25, seed), 7, 300).metrics)["accepted_length"]["interval"]
        covered += low <= 4 <= high
    assert 86 <= covered <= 99


def of_prompts(**sums):
    """Sums [P] of prompts; those that are not named are 0."""
    names = (
        "answers", "rounds", "emitted", "proposed", "accepted", "drafted", "tokens", "seconds", "plain_tokens",
        "plain_seconds", "draft_seconds", "verify_seconds", "compared", "same",
    )  # fmt: skip
    prompts = len(next(iter(sums.values())))
    none = {name: np.zeros(prompts) for name in names}
    return none | {name: np.zeros((prompts, 1)) for name in ("survived", "reached")} | sums


def independent(statistic, *sums):
    """The 95 % percentile interval by scipy: prompts are drawn, and all sums of a prompt stay together."""
    found = bootstrap(
        sums, statistic, paired=True, vectorized=True, n_resamples=20_000, method="percentile", rng=1
    )
    return list(found.confidence_interval)


def test_the_interval_is_the_one_that_scipy_finds():
    random = np.random.default_rng(0)
    rounds = random.integers(5, 40, 60).astype(float)
    emitted = rounds * random.uniform(1, 5, 60)
    metrics = from_sums(of_prompts(rounds=rounds, emitted=emitted), 20_000).metrics
    told = told_of(metrics)["accepted_length"]
    expected = independent(lambda e, r, axis: e.sum(axis) / r.sum(axis), emitted, rounds)
    assert told["value"] == pytest.approx(emitted.sum() / rounds.sum())
    assert told["interval"] == pytest.approx(expected, rel=0.004)  # a 90 % interval is 8 % off on either side
    assert told["interval"][1] - told["interval"][0] == pytest.approx(expected[1] - expected[0], rel=0.03)


def test_a_speedup_resamples_both_ways_of_answering_together():
    """Slow prompts are slow both ways: resampled apart, the interval would be several times as wide."""
    random = np.random.default_rng(1)
    tokens, slow = np.full(40, 64.0), random.lognormal(0, 1, 40)
    seconds = slow * random.uniform(0.95, 1.05, 40)
    sums = of_prompts(tokens=tokens, seconds=seconds, plain_tokens=tokens, plain_seconds=1.5 * slow)
    told = told_of(from_sums(sums, 20_000).metrics)["speedup"]

    def ratio(s, p, axis):
        return p.sum(axis) / s.sum(axis)

    expected = independent(ratio, seconds, 1.5 * slow)
    assert told["interval"] == pytest.approx(expected, rel=0.002)
    assert told["interval"][1] - told["interval"][0] < 0.1


def test_intervals_hold_the_truth_as_often_as_they_say():
    """400 data sets of 40 prompts whose true ratio is 3."""
    random = np.random.default_rng(2)
    held = 0
    for _ in range(400):
        rounds = random.integers(10, 30, 40).astype(float)
        emitted = rounds * random.normal(3, 1, 40)
        low, high = told_of(from_sums(of_prompts(rounds=rounds, emitted=emitted), 400).metrics)[
            "accepted_length"
        ]["interval"]
        held += low <= 3 <= high
    assert 0.92 <= held / 400 <= 0.98


def test_intervals_repeat():
    rounds = many(8, 0)
    first, second = (told_of(figures(rounds, 7, 200).metrics) for _ in range(2))
    assert first == second
    low, high = first["survival"][2]["interval"]
    assert low < first["survival"][2]["value"] < high


def test_macro_average():
    one = figures(table([row(0, 1, 3, 1), row(1, 1, 3, 1)]), 3, 20)
    other = figures(table([row(0, 1, 3, 3), row(1, 1, 3, 3), row(2, 1, 3, 3)]), 3, 20)
    single = figures(table([row(0, 1, 3, 0)]), 3, 20)
    told = told_of(average([one, other, single]))
    assert told["accepted_length"]["value"] == pytest.approx((2 + 4 + 1) / 3)
    assert told["accepted_length"]["interval"] == pytest.approx([7 / 3, 7 / 3])
    assert [f["value"] for f in told["survival"]] == pytest.approx([2 / 3, 1 / 3, 1 / 3])
    assert told["speedup"]["value"] is None


def test_context_buckets():
    """Acceptance by positions before the anchor (pitfall 44); plain rounds and prefills are not in it."""
    rounds = table([
        row(0, 0, 0, 0, context=300), row(0, 1, 3, 3, context=511), row(0, 2, 3, 1, context=512),
        row(0, 3, 3, 0, context=1023), row(1, 1, 3, 2, context=40_000),
        row(0, 1, 0, 0, mode="plain", context=5_000),
    ])  # fmt: skip
    found = by_context(rounds, 3, 0)
    assert [(low, high) for low, high, _ in found] == [(0, 512), (512, 1024), (32768, None)]
    assert [value(f, "accepted_length") for _, _, f in found] == [4.0, 1.5, 3.0]
    assert [f.counts["rounds"] for _, _, f in found] == [1, 2, 1]
