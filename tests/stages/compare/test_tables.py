"""The paired bootstrap and the tables, on rounds that can be worked out by hand."""

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import bootstrap

from data_specs.evaluation import SCHEMA
from data_specs.results.records import to_json
from pipeline.config import FigureConfig
from stages.compare.tables import VariantEvaluation, figure, main_table, paired_ratio


def table_of(measured, benchmarks, resamples):
    return to_json(main_table(measured, benchmarks, resamples, {name: name for name in measured}))


def rounds(accepted: dict[str, list[int]], benchmark: str = "math") -> pa.Table:
    """A round of 3 drafts for each number accepted, of prompts by key."""
    rows = [
        {
            "benchmark": benchmark, "prompt": p, "key": key, "turn": 0, "mode": "draft", "round": n + 1,
            "context": 20, "drafted": 3, "proposed": 3, "accepted": a, "emitted": a + 1, "tokens": [7] * (a + 1),
            "confidences": None, "draft_seconds": 0.01, "verify_seconds": 0.03, "finish": None,
        }
        for p, (key, line) in enumerate(accepted.items())
        for n, a in enumerate(line)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, SCHEMA)


def measured(accepted: dict[str, list[int]], benchmark: str = "math") -> VariantEvaluation:
    return VariantEvaluation(rounds(accepted, benchmark), 3)


def test_the_ratio_is_of_the_same_resample() -> None:
    """Prompts differ by a factor of four, drafters by two in each: paired, the ratio has no spread at all."""
    easy_and_hard = np.array([2.5, 4.0, 1.0, 2.5])
    assert paired_ratio(easy_and_hard / 2, easy_and_hard).tolist() == [0.5, 0.5, 0.5, 0.5]
    assert np.isnan(paired_ratio(np.array([1.0]), np.array([np.nan]))).tolist() == [True]


def test_the_paired_interval_is_a_point_where_every_prompt_gives_the_same_ratio() -> None:
    """dspark emits 2 or 4 tokens a round, half of it dflash: their own intervals overlap, the ratio's is a point."""
    found = table_of(
        {
            "dspark": measured({"a": [1, 1], "b": [3, 3]}),
            "dflash": measured({"b": [1, 1], "a": [0, 0]}),  # the other way round: the prompt's key counts
        },
        ["math"],
        200,
    )
    row = found["rows"]["math"]
    assert row["prompts"] == 2
    assert row["accepted_length"]["dspark"] == {"value": 3.0, "interval": [2.0, 4.0]}
    assert row["accepted_length"]["dflash"] == {"value": 1.5, "interval": [1.0, 2.0]}
    assert row["ratio"]["dflash"] == {"value": 0.5, "interval": [0.5, 0.5]}
    assert row["ratio"]["dspark"] == {"value": 1.0, "interval": [1.0, 1.0]}


def test_the_paired_interval_of_two_prompts() -> None:
    """Ratios 1/2 (prompt a), 1 (b), 3/4 (both): two prompts are drawn as aa, ab, ba or bb."""
    found = table_of(
        {"dspark": measured({"a": [1], "b": [1]}), "dflash": measured({"a": [0], "b": [1]})}, ["math"], 500
    )
    assert found["rows"]["math"]["ratio"]["dflash"] == {"value": 0.75, "interval": [0.5, 1.0]}


def test_the_macro_average_is_of_ratios_of_averages() -> None:
    tables = {
        name: VariantEvaluation(pa.concat_tables([rounds(math), rounds(chat, "chat")]), 3)
        for name, math, chat in (
            ("dspark", {"a": [3]}, {"c": [1]}),  # 4 and 2: 3
            ("mtp", {"a": [0]}, {"c": [1]}),  # 1 and 2: 1.5
        )
    }
    found = table_of(tables, ["chat", "math"], 50)
    assert found["order"] == ["chat", "math", "macro average"]
    row = found["rows"]["macro average"]
    assert row["prompts"] == 2
    assert row["accepted_length"]["mtp"]["value"] == 1.5
    assert row["ratio"]["mtp"]["value"] == 0.5
    # Both prompts together: 2 of 2 rounds, 1 of 2, 1 of 1.
    assert [figure["value"] for figure in found["conditional"]["dspark"]] == [1.0, 0.5, 1.0]
    assert found["speed"]["dspark"]["draft_ms"]["value"] == pytest.approx(10)
    assert found["speed"]["dspark"]["speedup"]["value"] is None  # nothing was decoded plainly


def test_conditional_acceptance_is_pooled_over_benchmarks() -> None:
    """A benchmark in which one round in ten reaches position 2 must not weigh as much as one with ten rounds there."""
    rare, often = rounds({"a": [2] + [0] * 9}), rounds({"c": [1] * 10}, "chat")
    found = table_of({"dspark": VariantEvaluation(pa.concat_tables([rare, often]), 3)}, ["math", "chat"], 0)
    values = [figure["value"] for figure in found["conditional"]["dspark"]]
    assert values == [11 / 20, 1 / 11, 0.0]  # averaged over benchmarks position 2 would be (1 + 0) / 2


def test_a_figure_counts_the_prompts_that_all_of_its_variants_answered() -> None:
    made = {
        "dspark4": measured({"a": [1], "b": [3], "c": [3]}),
        "dspark8": measured({"a": [2]}),
        "dflash4": measured({"b": [3], "a": [0]}),
        "dflash8": measured({"a": [1], "b": [3]}),
    }
    variants = {"dspark": ["dspark4", "dspark8"], "dflash": ["dflash4", "dflash8"]}
    asked = FigureConfig("t", "drafter.depth", [4, 8])
    found = to_json(figure(asked, variants, made, ["math"], 20))
    assert found["prompts"] == 1  # a
    assert found["accepted_length"] == {
        "dspark": [{"value": 2.0, "interval": None}, {"value": 3.0, "interval": None}],
        "dflash": [{"value": 1.0, "interval": None}, {"value": 2.0, "interval": None}],
    }
    assert (found["drafters"], found["values"]) == (["dspark", "dflash"], [4, 8])


def test_intervals_repeat() -> None:
    dspark, mtp = measured({"a": [1], "b": [3], "c": [0]}), measured({"a": [0], "b": [2], "c": [0]})
    table = {"dspark": dspark, "mtp": mtp}
    assert table_of(table, ["math"], 100) == table_of(table, ["math"], 100)


def test_the_interval_of_a_ratio_is_the_one_that_scipy_finds() -> None:
    """Prompts are drawn once for both drafters: what is easy for the one is easy for the other."""
    random = np.random.default_rng(0)
    lengths = random.integers(0, 4, (30, 6))
    worse = np.maximum(lengths - random.integers(0, 2, lengths.shape), 0)
    keys = [f"{n:02}" for n in range(30)]
    variants = {
        "dspark": measured(dict(zip(keys, lengths.tolist(), strict=True))),
        "dflash": measured(dict(zip(keys, worse.tolist(), strict=True))),
    }
    told = table_of(variants, ["math"], 20_000)["rows"]["math"]["ratio"]["dflash"]

    def ratio(b, a, axis):
        return b.sum(axis) / a.sum(axis)

    sums = ((worse + 1).sum(1), (lengths + 1).sum(1))
    expected = bootstrap(sums, ratio, paired=True, n_resamples=20_000, method="percentile", rng=1)
    assert told["interval"] == pytest.approx(list(expected.confidence_interval), rel=0.004)
    width = told["interval"][1] - told["interval"][0]
    high, low = expected.confidence_interval.high, expected.confidence_interval.low
    assert width == pytest.approx(high - low, rel=0.04)


def test_benchmarks_of_a_comparison_are_resampled_independently() -> None:
    """The average over two benchmarks alike has an interval that is narrower than each by the root of two."""
    random = np.random.default_rng(1)
    lines = {f"{n:02}": [int(a)] for n, a in enumerate(random.integers(0, 4, 30))}
    both = pa.concat_tables([rounds(lines, "math"), rounds(lines, "code")])
    found = table_of({"dspark": VariantEvaluation(both, 3)}, ["math", "code"], 4000)["rows"]
    widths = {name: np.ptp(row["accepted_length"]["dspark"]["interval"]) for name, row in found.items()}
    assert widths["macro average"] == pytest.approx(widths["math"] / 2**0.5, rel=0.06)
