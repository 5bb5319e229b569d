"""The study artifact: policies under load, both really served and simulated.

    steps/<unit>.parquet   every step of the engine in one unit of work, and in the timings around it
    times/<unit>.parquet   every request of the unit; it is written last, so a unit without it is not done
    pool.parquet           recorded answers, position by position, which simulations replay
    study.json  study.md  *.png      made from them by stages/study/result.py and report.py

A unit is ``c<concurrency>-<policy>-<repeat>``. The ``part`` of a step says to which run it belongs: ``before`` and
``after`` time the machine just before and after the ``point``. Seconds are since the run began.

data_specs/results/study.py has the schema of study.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    [("part", pa.string()), ("began", pa.float64()), ("requests", pa.int32()), ("context", pa.int64())]
    + [(name, pa.int32()) for name in ("drafted", "verified", "accepted", "emitted", "prefilled")]
    + [(f"{name}_seconds", pa.float64()) for name in ("prefill", "draft", "schedule", "verify")]
    + [("pace", pa.float64())]  # seconds of a fixed reference pass just before
)
TIME_SCHEMA = pa.schema(
    [(name, pa.int32()) for name in ("number", "tokens")]
    + [(name, pa.float64()) for name in ("arrival", "admitted", "first_token", "finished")]
)
POOL_SCHEMA = pa.schema(
    [
        ("answer", pa.int32()),  # index of the answer; its rows follow one another
        ("prompt", pa.int32()),  # tokens of its prompt
        ("limit", pa.int32()),  # tokens asked for at most
        ("held", pa.int16()),  # leading drafts that are accepted; null for an answer of one token
        # Of the G drafts at this position, calibrated if the facts say so.
        ("confidences", pa.list_(pa.float64())),
    ]
)


class StudyError(UserError):
    """A table of a study is missing, damaged or of another schema; the message names the file."""


def write_rows(path: Path, rows: Sequence[Mapping[str, object]], schema: pa.Schema) -> None:
    """Write ``rows``, whose keys are those of ``schema``, to ``path``, whole or not at all."""
    write_table(path, pa.Table.from_pylist(list(rows), schema))


def read_rows(path: Path, schema: pa.Schema) -> list[dict[str, Any]]:
    """The rows of ``path``. Raises ``StudyError`` naming a file that is no Parquet file or has other columns."""
    rows: list[dict[str, Any]] = read_table(path, schema, "a study", StudyError).to_pylist()
    return rows
