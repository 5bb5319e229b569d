"""Recorded rounds as arrays: how confident the draft was of each token, and what was accepted.

Shapes: N rounds >= 1 of the answers made with the draft, G drafts a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_specs.evaluation import DRAFT, EvaluationError
from data_specs.results.summary import PositionQuality
from pipeline.confidence.temperatures import BINS, quality, scaled

Array = np.ndarray


@dataclass(frozen=True)
class Observed:
    """Rounds of one table. ``confidences`` fp64 [N, G] is NaN where no token was drafted; counts are int64 [N].

    ``dialogues`` [N] names the prompt of each round, ``<benchmark>/<prompt>``.
    """

    dialogues: Array
    confidences: Array
    drafted: Array
    proposed: Array
    accepted: Array
    emitted: Array

    def where(self, rows: Array) -> Observed:
        """The rounds that ``rows`` bool [N] selects."""
        return Observed(**{name: values[rows] for name, values in vars(self).items()})


def observe(rounds: pa.Table, drafts: int) -> Observed:
    """The drafting rounds of ``rounds`` (schema: data_specs/evaluation.py); ``drafts`` is G.

    Raises ``EvaluationError`` naming benchmark, prompt and round if a confidence is absent or no probability.
    """
    drafted = pc.and_(pc.equal(rounds["mode"], DRAFT), pc.greater(rounds["round"], 0))
    table = rounds.filter(drafted).combine_chunks()
    names = pc.binary_join_element_wise(table["benchmark"], table["prompt"].cast(pa.string()), "/")
    numbers = {
        name: table[name].to_numpy().astype(np.int64)
        for name in ("drafted", "proposed", "accepted", "emitted")
    }
    confidences = _confidences(table, numbers["drafted"], drafts)
    return Observed(names.to_numpy(zero_copy_only=False).astype(str), confidences, **numbers)


def compare(observed: Observed, temperatures: Sequence[float]) -> dict[str, list[PositionQuality]]:
    """``before`` and ``after``: quality of the cumulative product by position, without and with temperatures [G].

    A position that no round reached has 0 rounds, so its errors of 0 mean nothing.
    """
    raw = observed.confidences
    versions = {"before": raw, "after": scaled(raw, np.asarray(temperatures)) if len(raw) else raw}
    nothing = PositionQuality(0, 0.0, 0.0, None, [None] * BINS, [None] * BINS, [0] * BINS)
    found = {}
    for name, values in versions.items():
        reached = quality(values, observed.accepted, observed.proposed)
        found[name] = reached + [nothing] * (len(temperatures) - len(reached))
    return found


def _confidences(table: pa.Table, drafted: Array, drafts: int) -> Array:
    """The lists in ``table`` as fp64 [N, G], NaN after their ends."""
    column = table["confidences"]
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    if (lengths != drafted).any():
        row = int(np.argmax(lengths != drafted))
        raise EvaluationError(
            f"{_place(table, row)}: expected {drafted[row]} confidences, got {lengths[row]}"
        )
    values = pc.list_flatten(column).to_numpy().astype(np.float64)
    bad = ~((values >= 0) & (values <= 1))  # NaN is neither
    if bad.any():
        row = int(np.searchsorted(np.cumsum(lengths), int(np.argmax(bad)), side="right"))
        got = values[np.argmax(bad)]
        raise EvaluationError(f"{_place(table, row)}: confidence: expected a number from 0 to 1, got {got}")
    dense = np.full((len(lengths), drafts), np.nan)
    dense[np.arange(drafts) < lengths[:, None]] = values
    return dense


def _place(table: pa.Table, row: int) -> str:
    found = table.slice(row, 1).to_pylist()[0]
    return f"benchmark {found['benchmark']}, prompt {found['prompt']}, turn {found['turn']}, round {found['round']}"
