"""Round tables as arrays, and what is refused in them."""

import json
import math

import numpy as np
import pyarrow as pa
import pytest
from tiny_errors import refused

from data_specs.evaluation import SCHEMA, EvaluationError
from data_specs.results.records import to_json
from pipeline.confidence.rounds import compare, observe


def row(number, confidences, accepted, proposed=None, prompt=0, mode="draft", **changes):
    drafted = len(confidences or [])
    return {
        "benchmark": "b", "prompt": prompt, "key": "k", "turn": 0, "mode": mode, "round": number, "context": 9,
        "drafted": drafted, "proposed": drafted if proposed is None else proposed, "accepted": accepted,
        "emitted": accepted + 1, "tokens": [5] * (accepted + 1), "confidences": confidences,
        "draft_seconds": 0.25, "verify_seconds": 0.5, "finish": None,
    } | changes  # fmt: skip


def table(*rows):
    return pa.Table.from_pylist(list(rows), SCHEMA)


def test_rounds_made_with_the_draft_are_what_is_looked_at():
    found = observe(
        table(
            row(0, None, 0), row(1, [0.5, 0.25, 0.75], 1), row(2, [0.5], 1, emitted=1), row(3, None, 0, prompt=1),
            row(1, None, 0, mode="plain"),
        ),
        drafts=3,
    )  # fmt: skip
    assert found.dialogues.tolist() == ["b/0", "b/0", "b/1"]
    assert np.array_equal(
        found.confidences, [[0.5, 0.25, 0.75], [0.5, math.nan, math.nan], [math.nan] * 3], equal_nan=True
    )
    assert (found.drafted.tolist(), found.accepted.tolist()) == ([3, 1, 0], [1, 1, 0])
    assert found.where(np.array([False, True, False])).emitted.tolist() == [1]


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (row(2, [0.5, math.nan], 1, prompt=7), ["prompt 7", "turn 0", "round 2", "confidence", "nan"]),
        (row(3, [1.5], 1), ["prompt 0", "turn 0", "round 3", "confidence", 1.5]),
        (row(4, [0.5], 0, drafted=2), ["prompt 0", "turn 0", "round 4", "confidences", 2, 1]),
    ],
)
def test_what_is_no_confidence_is_named(bad, named):
    with refused(EvaluationError, "benchmark b", *named):
        observe(table(row(1, [0.5, 0.5], 1), row(1, None, 0), bad), drafts=2)


def test_quality_by_hand():
    """T = 2 turns 16/17 (logit ln 16) into 4/5; drafts behind an accepted EOS had no chance and do not count."""
    sure = 16 / 17
    rounds = table(*(row(n, [sure, 0.5], a, p) for n, a, p in ((1, 1, 1), (2, 1, 2), (3, 2, 2), (4, 0, 2))))
    found = compare(observe(rounds, 2), [2.0, 1.0])
    first, second = found["before"]
    assert (first.rounds, second.rounds) == (4, 3)
    assert first.ece == pytest.approx(sure - 0.75, abs=1e-6) and first.auc == 0.5
    assert found["after"][0].ece == pytest.approx(0.05, abs=1e-6)
    # Cumulative product 0.8 * 0.5 = 0.4 in bin 8 (as a float just below or at it), a third accepted.
    assert found["after"][1].ece == pytest.approx(0.4 - 1 / 3, abs=1e-6)
    assert sum(found["after"][1].counts) == 3 and found["after"][0].predicted[0] is None
    assert json.dumps([to_json(one) for one in found["after"]], allow_nan=False)


def test_positions_that_no_round_reached_have_no_rounds():
    found = compare(observe(table(row(1, [0.75], 1)), 2), [1.0, 1.0])
    assert [q.rounds for q in found["before"]] == [q.rounds for q in found["after"]] == [1, 0]
    assert [q.rounds for q in compare(observe(table(row(0, None, 0)), 2), [1.0, 1.0])["after"]] == [0, 0]
