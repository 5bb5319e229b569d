"""The round table of an evaluation: every round of every answer, raw, so that any figure can be made again.

    rounds/<benchmark>-<chunk>.parquet   one file a unit of work, written whole
    calibration/heldout-<chunk>.parquet  the same of held-out prompts, which the temperatures were fitted on
    calibration.json                     those temperatures (data_specs/calibration.py)
    sweep/<threshold>/<benchmark>-<chunk>.parquet   answers that a threshold changes, decoded with it
    summary.json  summary.md  *.png      made from the rounds by stages/evaluate/report.py
    report.html   the same as one self-contained page (pipeline/report/)

Round 0 is the prefill: it emits the first token and drafts nothing. Rounds 1, 2, ... draft a chain after the
anchor, verify it and emit the accepted drafts and one token of the target's. The ``emitted`` of all rounds
add up to the answer's length exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from data_specs.errors import UserError
from data_specs.parquet import read_table, write_table

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
        (
            "proposed",
            pa.int16(),
        ),  # of those, up to the answer's end: drafts after an accepted EOS do not count
        ("accepted", pa.int16()),  # leading drafts that hold and belong to the answer
        (
            "emitted",
            pa.int16(),
        ),  # accepted, and the token of the target's after them unless EOS came before it
        ("tokens", pa.list_(pa.int32())),  # the emitted ids
        ("confidences", pa.list_(pa.float32())),  # of the drafted tokens; null without a confidence head
        ("draft_seconds", pa.float64()),
        ("verify_seconds", pa.float64()),
        ("finish", pa.string()),  # stop | length in the last round of an answer, else null
    ]
)


class EvaluationError(UserError):
    """A round table that is missing, damaged or of another schema; the message names the file."""


def write_rounds(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write ``rows`` (keys as in ``SCHEMA``); ``path`` is whole or absent (temporary name, fsync, rename)."""
    write_table(path, pa.Table.from_pylist(list(rows), SCHEMA))


def read_rounds(folder: Path, part: str = ROUNDS) -> pa.Table:
    """All rounds of the evaluation at ``folder`` (of its ``part``), in the order of their files.

    Raises ``EvaluationError`` naming the file that is no Parquet file or has other columns.
    """
    paths = sorted((folder / part).glob("*.parquet"))
    if not paths:
        raise EvaluationError(f"{folder / part}: expected Parquet files of rounds, found none")
    return pa.concat_tables([read_table(path, SCHEMA, "rounds", EvaluationError) for path in paths])
