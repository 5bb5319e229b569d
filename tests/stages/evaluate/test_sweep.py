"""The sweep's arithmetic by hand. That it equals decoding with the threshold: test_calibrate.py, on a target."""

import pyarrow as pa
import pytest

from data_specs.evaluation import SCHEMA
from data_specs.results.records import to_json
from pipeline.confidence.rounds import observe
from stages.evaluate.sweep import THRESHOLDS, changed, cut, sweep_row


def row(prompt, number, confidences, accepted, proposed=None):
    drafted = len(confidences)
    return {
        "benchmark": "b", "prompt": prompt, "key": "k", "turn": 0, "mode": "draft", "round": number, "context": 9,
        "drafted": drafted, "proposed": drafted if proposed is None else proposed, "accepted": accepted,
        "emitted": accepted + 1, "tokens": [5] * (accepted + 1), "confidences": confidences or None,
        "draft_seconds": 0.25, "verify_seconds": 0.5, "finish": None,
    }  # fmt: skip


RECORD = pa.Table.from_pylist(
    [
        row(0, 0, [], 0), row(0, 1, [0.9, 0.8, 0.2], 2), row(0, 2, [0.7, 0.4, 0.9], 0),
        row(1, 0, [], 0), row(1, 1, [0.9, 0.3, 0.9], 3), row(1, 2, [], 0),
    ],
    SCHEMA,
)  # fmt: skip


def test_thresholds():
    assert THRESHOLDS == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def test_a_chain_ends_before_the_first_draft_below_its_threshold():
    observed = observe(RECORD, 3)
    assert cut(observed, [0.0] * 3).tolist() == [3, 3, 3, 0]
    assert cut(observed, [0.5] * 3).tolist() == [2, 1, 1, 0]
    assert cut(observed, [0.8, 0.0, 0.0]).tolist() == [3, 0, 3, 0]  # each position has its own


def test_what_a_threshold_changes():
    observed = observe(RECORD, 3)
    # At 0.25 only the rejected third draft of the first round goes: at temperature 0 nothing changes.
    assert changed(observed, [0.25] * 3, greedy=True) == set()
    assert changed(observed, [0.25] * 3, greedy=False) == {"b/0"}
    assert changed(observed, [0.5] * 3, greedy=True) == {"b/1"}  # an accepted draft of 0.3
    assert changed(observed, [0.85] * 3, greedy=True) == {"b/0", "b/1"}


def test_figures_by_hand():
    # Chains of 2, 3, 3 and 0 drafts; 5 of 8 accepted in 4 rounds, 9 tokens.
    assert to_json(sweep_row(0.25, [0.25] * 3, RECORD, None, set())) == {
        "threshold": 0.25, "accepted": 1.25, "rejected": 0.75, "acceptance_rate": 0.625, "accepted_length": 2.25,
        "exact": 2, "anew": 0,
    }  # fmt: skip
    # Prompt 0 from the record: chains of 2 and 1, 2 accepted. Prompt 1 anew: chains of 1, 0, 1, all accepted.
    anew = pa.Table.from_pylist(
        [row(1, 0, [], 0), row(1, 1, [0.9], 1), row(1, 2, [], 0), row(1, 3, [0.9], 1)], SCHEMA
    )
    found = sweep_row(0.5, [0.5] * 3, RECORD, anew, {"b/1"})
    assert (found.accepted, found.rejected, found.acceptance_rate) == (0.8, pytest.approx(0.2), 0.8)
    assert (found.accepted_length, found.exact, found.anew) == (9 / 5, 1, 1)


def test_drafts_behind_the_end_of_an_answer_count_as_neither():
    record = pa.Table.from_pylist([row(0, 0, [], 0), row(0, 1, [0.9, 0.9, 0.1], 1, proposed=1)], SCHEMA)
    found = sweep_row(0.5, [0.5] * 3, record, None, set())
    assert (found.accepted, found.rejected) == (1.0, 0.0)


def test_without_any_draft_there_is_no_rate():
    record = pa.Table.from_pylist([row(0, 0, [], 0), row(0, 1, [0.4], 0)], SCHEMA)
    assert sweep_row(0.5, [0.5], record, None, set()).acceptance_rate is None
