"""Figures from counters, against numbers made by hand."""

import pyarrow as pa
import pytest

from data_specs.results.records import to_json
from data_specs.served import SCHEMA
from pipeline.acceptance import average, summary
from stages.served.counted import figures, longest, rounds_of


def row(prompt=0, turn=0, mode="draft", tokens=8, seconds=2.0, drafts=3, drafted=9, accepted=4, at=(2, 1, 1)):
    plain = mode == "plain"
    return {
        "benchmark": "gsm8k", "prompt": prompt, "key": f"k{prompt}", "turn": turn, "mode": mode, "context": 5,
        "tokens": list(range(tokens)), "seconds": seconds, "finish": "stop", "drafts": None if plain else drafts,
        "drafted": None if plain else drafted, "accepted": None if plain else accepted,
        "accepted_at": None if plain or at is None else list(at),
    }  # fmt: skip


def table(*rows):
    return pa.Table.from_pylist(list(rows), SCHEMA)


@pytest.mark.parametrize(
    "tokens,drafts,accepted,rounds",
    [
        (8, 3, 4, 3),  # every step drafted: 1 + 3 + 4
        (9, 3, 4, 4),  # one more step, without a draft: llama.cpp's for the last token
        (6, 3, 4, 3),  # the last step accepted two drafts beyond the end
        (8, None, 4, 3),  # steps are not told
        (4, None, 6, 1),  # and the last was cut: at least one
        (1, None, 0, 0),  # the prefill alone
        (1, 0, 0, 0),
    ],
)
def test_rounds(tokens, drafts, accepted, rounds):
    assert rounds_of(row(tokens=tokens, drafts=drafts, accepted=accepted)) == rounds


def test_figures():
    rows = [
        row(0), row(0, mode="plain", seconds=4.0),
        row(1, tokens=3, seconds=1.0, drafts=1, drafted=3, accepted=1, at=(1, 0, 0)),
        row(1, mode="plain", tokens=3, seconds=1.5),
        row(1, turn=1, tokens=5, seconds=1.0, drafts=2, drafted=6, accepted=2, at=(1, 1, 0)),
        row(1, turn=1, mode="plain", tokens=6, seconds=2.5),
    ]  # fmt: skip
    answers = table(*rows)
    assert longest(answers) == 3
    found = figures(answers, 3, 200)
    assert found.prompts == 2
    assert found.counts == {
        "answers": 3, "rounds": 6, "emitted": 13, "proposed": 18, "accepted": 7, "drafted": 18, "tokens": 16,
        "plain_tokens": 17,
    }  # fmt: skip
    told = to_json(summary(found.metrics))
    value = {name: figure["value"] for name, figure in told.items() if isinstance(figure, dict)}
    assert value["accepted_length"] == pytest.approx(13 / 6)
    assert value["acceptance_rate"] == pytest.approx(7 / 18)
    assert value["verify_rate"] == pytest.approx(13 / 24)
    assert value["tokens_per_second"] == pytest.approx(4.0)
    assert value["plain_tokens_per_second"] == pytest.approx(17 / 8)
    assert value["speedup"] == pytest.approx(32 / 17)
    assert value["same_answers"] == pytest.approx(2 / 3)
    assert value["draft_ms"] is None and value["verify_share"] is None  # engines do not tell them
    assert [figure["value"] for figure in told["survival"]] == pytest.approx([4 / 6, 2 / 6, 1 / 6])
    assert [figure["value"] for figure in told["conditional"]] == pytest.approx([4 / 6, 2 / 4, 1 / 2])
    low, high = told["accepted_length"]["interval"]
    assert (low, high) == pytest.approx((6 / 3, 7 / 3))  # one prompt or the other alone
    assert to_json(summary(average([found, found])))["accepted_length"]["value"] == pytest.approx(13 / 6)


def test_what_is_not_told_has_no_value():
    answers = table(row(drafts=None, at=None), row(1, drafts=None, at=None))
    assert longest(answers) == 0
    told = to_json(summary(figures(answers, 0, 10).metrics))
    assert told["survival"] == [] and told["speedup"]["value"] is None
    assert told["accepted_length"] == {"value": pytest.approx(7 / 3), "interval": [pytest.approx(7 / 3)] * 2}
