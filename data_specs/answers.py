"""The answers artifact: one Parquet file per unit of work, one row per answered turn.

``prompt_ids`` and ``answer_ids`` are the ids that the engine read and made, including an end-of-turn token, so nothing
is tokenized again. A prompt without an answer has no row; the counts in the file's metadata say how many there are, and
why.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data_specs.errors import UserError
from data_specs.parquet import write_table

SCHEMA_VERSION = 1
COUNTS = b"draftline.counts"
SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),  # pipeline.prompts.rows.prompt_key: SHA-256 (hex)
        pa.field("split", pa.string(), nullable=False),  # train | heldout
        pa.field("category", pa.string()),
        pa.field("turn", pa.int32(), nullable=False),  # 0 for the first answer of a conversation
        pa.field("prompt_ids", pa.list_(pa.int32()), nullable=False),  # the generation prompt included
        pa.field("answer_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),  # stop | length | given | a server's own
        pa.field("messages", pa.string(), nullable=False),  # JSON: the history, then the answer as text
        pa.field("thinking", pa.bool_()),  # enable_thinking of the chat template; null: its default
        pa.field("sampling", pa.string(), nullable=False),  # JSON: the settings that were in effect
        pa.field("tools", pa.string()),  # JSON: definitions of tools in OpenAI's form; null: there are none
    ]
)
# Files that an earlier version wrote have no tools.
WITHOUT_TOOLS = SCHEMA.remove(SCHEMA.get_field_index("tools"))


class AnswersError(UserError):
    """A Parquet file is damaged or is no file of answers; the message names it."""


@dataclass(frozen=True)
class AnswerRow:
    """One answered turn; the columns of ``SCHEMA``."""

    key: str
    split: str
    category: str | None
    turn: int
    prompt_ids: list[int]
    answer_ids: list[int]
    finish_reason: str
    messages: str
    thinking: bool | None
    sampling: str
    tools: str | None = None


def write_answers(path: Path, rows: Iterable[AnswerRow], counts: Mapping[str, int] | None = None) -> None:
    """Write ``rows`` and ``counts`` to ``path``, whole or not at all."""
    metadata = {COUNTS: json.dumps(dict(sorted((counts or {}).items()))).encode()}
    write_table(path, pa.Table.from_pylist([asdict(row) for row in rows], SCHEMA.with_metadata(metadata)))


def answer_files(folder: Path) -> list[Path]:
    """The Parquet files of an answers artifact, in the order of their units."""
    return sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("."))


def read_answers(folder: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows of the artifact in ``folder``, by unit and row; ``columns`` selects some of the columns.

    Raises ``AnswersError`` naming a file that is damaged or has other columns.
    """
    chosen = SCHEMA if columns is None else pa.schema([SCHEMA.field(name) for name in columns])
    tables = [_read(path, chosen.names) for path in answer_files(folder)]
    return pa.concat_tables(tables) if tables else chosen.empty_table()


def read_counts(folder: Path) -> dict[str, int]:
    """The sum over the artifact's files of the counts that ``write_answers`` was given."""
    total: Counter[str] = Counter()
    for path in answer_files(folder):
        total.update(json.loads((_open(path).schema_arrow.metadata or {}).get(COUNTS, b"{}")))
    return dict(sorted(total.items()))


def _open(path: Path) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise AnswersError(f"{path}: expected a Parquet file of answers, got: {error}") from error
    if not any(file.schema_arrow.equals(known) for known in (SCHEMA, WITHOUT_TOOLS)):
        raise AnswersError(f"{path}: expected the columns {SCHEMA.names}, got {file.schema_arrow.names}")
    return file


def _read(path: Path, columns: list[str]) -> pa.Table:
    file = _open(path)
    try:
        table = file.read(columns=columns).replace_schema_metadata(None)
    except (pa.ArrowInvalid, OSError) as error:
        raise AnswersError(f"{path}: expected a Parquet file of answers, got: {error}") from error
    if "tools" in columns and "tools" not in table.column_names:
        return table.append_column(SCHEMA.field("tools"), pa.nulls(table.num_rows, pa.string()))
    return table
