"""The round table of an evaluation: every round of every answer, from which all figures can be computed again.

    rounds/<benchmark>-<chunk>.parquet   one file per unit of work, written whole
    calibration/heldout-<chunk>.parquet  the same for the held-out prompts on which the temperatures were fitted
    calibration.json                     those temperatures (data_specs/calibration.py)
    sweep/<threshold>/<benchmark>-<chunk>.parquet   answers that change with a threshold, decoded with it
    summary.json  summary.md  *.png      made from the rounds by stages/evaluate/report.py
    report.html   the same as one self-contained page (pipeline/report/)

Round 0 is the prefill: it emits the first token and drafts nothing. Rounds 1, 2, ... draft a chain after the anchor,
verify it, and emit the accepted drafts and one token of the target's own. The ``emitted`` of all rounds add up exactly
to the length of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from data_specs.errors import UserError
from data_specs.parquet import read_tables, write_table

SCHEMA_VERSION = 1
ROUNDS, HELDOUT_ROUNDS, SWEEP_ROUNDS = "rounds", "calibration", "sweep"
DRAFT, PLAIN = "draft", "plain"

SCHEMA = pa.schema(
    [
        ("benchmark", pa.string()),
        ("prompt", pa.int32()),  # index of the prompt in its benchmark, after selection
        ("key", pa.string()),  # sha256 of the prompt's messages
        ("turn", pa.int16()),
        ("mode", pa.string()),  # draft | plain: with the draft, or one token at a time without it
        ("round", pa.int32()),
        ("context", pa.int32()),  # positions before the anchor (round 0: before the first new token)
        ("drafted", pa.int16()),  # length of the chain that was verified
        # The drafts up to the answer's end: those after an accepted EOS do not count.
        ("proposed", pa.int16()),
        ("accepted", pa.int16()),  # leading drafts that the target accepts and that belong to the answer
        # The accepted drafts, and the target's own token after them unless EOS came first.
        ("emitted", pa.int16()),
        ("tokens", pa.list_(pa.int32())),  # the emitted ids
        ("confidences", pa.list_(pa.float32())),  # of the drafted tokens; null without a confidence head
        ("draft_seconds", pa.float64()),
        ("verify_seconds", pa.float64()),
        ("finish", pa.string()),  # stop | length in the last round of an answer, else null
    ]
)


class EvaluationError(UserError):
    """A round table is missing, damaged or of another schema; the message names the file."""


def write_rounds(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write ``rows``, whose keys are those of ``SCHEMA``, to ``path``, whole or not at all."""
    write_table(path, pa.Table.from_pylist(list(rows), SCHEMA))


def read_rounds(folder: Path, part: str = ROUNDS) -> pa.Table:
    """All rounds of the evaluation at ``folder`` (in its subfolder ``part``), in the order of their files.

    Raises ``EvaluationError`` naming a file that is no Parquet file or has other columns.
    """
    return read_tables(folder / part, SCHEMA, "rounds", EvaluationError)
