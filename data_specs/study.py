"""The study artifact: policies under load, really served and simulated.

    steps/<unit>.parquet   every step of the engine in one unit of work, and of the timings around it
    times/<unit>.parquet   every request of the unit; written last: a unit without it is not done
    pool.parquet           recorded answers, position by position: what simulations replay
    study.json  study.md  *.png      made from them by stages/study/result.py and report.py

A unit is ``c<concurrency>-<policy>-<repeat>``. ``part`` of a step says which run it belongs to: ``before`` and
``after`` time the machine just before and after the ``point``. Seconds are since the run began.

data_specs/results/study.py has the schema of study.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_specs.errors import UserError
from data_specs.parquet import read_table, write_table

SCHEMA_VERSION = 2
STEPS, TIMES, POOL = "steps", "times", "pool.parquet"
RESULT, MARKDOWN = "study.json", "study.md"
BEFORE, POINT, AFTER = "before", "point", "after"
MACHINE, MEASURED = "this machine", "measured"

STEP_SCHEMA = pa.schema(
    [
        ("part", pa.string()),
        ("began", pa.float64()),
        ("requests", pa.int32()),
        ("context", pa.int64()),
        ("drafted", pa.int32()),
        ("verified", pa.int32()),
        ("accepted", pa.int32()),
        ("emitted", pa.int32()),
        ("prefilled", pa.int32()),
        ("prefill_seconds", pa.float64()),
        ("draft_seconds", pa.float64()),
        ("schedule_seconds", pa.float64()),
        ("verify_seconds", pa.float64()),
        ("pace", pa.float64()),  # seconds of a pass that is always the same, made shortly before
    ]
)
TIME_SCHEMA = pa.schema(
    [
        ("number", pa.int32()),
        ("tokens", pa.int32()),
        ("arrival", pa.float64()),
        ("admitted", pa.float64()),
        ("first_token", pa.float64()),
        ("finished", pa.float64()),
    ]
)
POOL_SCHEMA = pa.schema(
    [
        ("answer", pa.int32()),  # index of the answer; its rows follow one another
        ("prompt", pa.int32()),  # tokens of its prompt
        ("limit", pa.int32()),  # tokens asked for at most
        ("held", pa.int16()),  # leading drafts that hold; null in the only row of an answer of one token
        (
            "confidences",
            pa.list_(pa.float64()),
        ),  # of the G drafts made at this position, calibrated where ``facts`` says so
    ]
)


class StudyError(UserError):
    """A table of a study that is missing, damaged or of another schema; the message names the file."""


def write_rows(path: Path, rows: Sequence[dict[str, Any]], schema: pa.Schema) -> None:
    """Write ``rows`` (keys as in ``schema``); ``path`` is whole or absent."""
    write_table(path, pa.Table.from_pylist(list(rows), schema))


def read_rows(path: Path, schema: pa.Schema) -> list[dict[str, Any]]:
    """The rows of ``path``. Raises ``StudyError`` naming the file that is no Parquet file or has other columns."""
    rows: list[dict[str, Any]] = read_table(path, schema, "a study", StudyError).to_pylist()
    return rows
