"""The answers of a server that was evaluated by its own counters: one row per answer.

    answers/<benchmark>-<chunk>.parquet   one file per unit of work, written whole
    summary.json  summary.md  *.png       made from the answers by stages/served/report.py
    report.html   what the draft's own evaluation promised, if there is one, beside what serving gives

This artifact of the kind ``evaluation`` has no rounds, because an engine counts by the answer. The counters are stored
as the engine reports them, and null if it does not report them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from data_specs.evaluation import EvaluationError
from data_specs.parquet import read_tables, write_table

SCHEMA_VERSION = 1
ANSWERS = "answers"

SCHEMA = pa.schema(
    [
        ("benchmark", pa.string()),
        ("prompt", pa.int32()),  # index of the prompt in its benchmark, after selection
        ("key", pa.string()),  # sha256 of the prompt's messages
        ("turn", pa.int16()),
        ("mode", pa.string()),  # draft | plain: by the server with the draft, or by the one without it
        ("context", pa.int32()),  # tokens before the answer
        ("tokens", pa.list_(pa.int32())),  # the answer's ids, as the server returned them
        ("seconds", pa.float64()),  # from the request to its whole response, as the client sees it
        ("finish", pa.string()),  # stop | length
        ("drafts", pa.int32()),  # verification steps with drafts
        ("drafted", pa.int32()),  # tokens drafted in them
        ("accepted", pa.int32()),  # of them, accepted, including those beyond the answer's end
        ("accepted_at", pa.list_(pa.int32())),  # steps that accepted at least k drafts, k = 1 ... K
    ]
)


def write_answers(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write ``rows``, whose keys are those of ``SCHEMA``, to ``path``, whole or not at all."""
    write_table(path, pa.Table.from_pylist(list(rows), SCHEMA))


def read_answers(folder: Path) -> pa.Table:
    """All answers of the evaluation at ``folder``, in the order of their files.

    Raises ``EvaluationError`` naming a file that is no Parquet file or has other columns.
    """
    return read_tables(folder / ANSWERS, SCHEMA, "answers", EvaluationError)
