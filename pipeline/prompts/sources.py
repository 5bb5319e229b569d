"""Reads rows from local files of several formats, globs, folders, and data sets of the Hub."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, cast

import data_specs
from data_specs.errors import UserError
from pipeline.config import SourceConfig
from pipeline.prompts.rows import FIELDS, Rejection

Row = dict[str, Any]
FORMATS = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".csv", ".parquet")
DESCRIPTIONS = (".yaml", ".yml")


class RowsError(UserError):
    """A source cannot be read. The message names it, and the line if there is one."""


def load_rows(source: SourceConfig) -> Iterator[Row | Rejection]:
    """At most ``source.limit`` rows of ``source``. A row that a parser cannot take is a ``Rejection``.

    ``source.path`` is a file in one of ``FORMATS``, a folder of such files, a glob pattern, a .yaml file that
    describes a source (as those in data_specs/prompts do), or a Hub data set. A file or folder is looked for below the
    working directory, then beside the installed package. Raises ``RowsError``.
    """
    source, path = _described(source)
    if path is None or (path.is_dir() and source.subset is not None):
        rows: Iterator[Row | Rejection] = _dataset_rows(source, str(path or source.path))
    else:
        rows = itertools.chain.from_iterable(_file_rows(file) for file in _files(path))
    return itertools.islice(rows, source.limit)


def local_files(source: SourceConfig) -> list[Path]:
    """The local files of ``source``; an empty list for a Hub data set. Raises the errors of ``load_rows``."""
    path = _described(source)[1]
    if path is None:
        return []
    if path.is_dir() and source.subset is not None:  # The datasets library decides which files it reads.
        return sorted(file for file in path.rglob("*") if file.is_file())
    return _files(path)


def _described(source: SourceConfig) -> tuple[SourceConfig, Path | None]:
    """``source`` and its file, folder or pattern (None: on the Hub). A .yaml description is followed once."""
    path = _local(source.path)
    if path is None or path.suffix not in DESCRIPTIONS:
        return source, path
    import yaml

    said = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(said, dict) or not isinstance(said.get("path"), str):
        raise RowsError(f"{path}: expected a mapping with the field path, got {type(said).__name__}")
    fields = {name: said[name] for name in ("path", "subset", "split", "revision") if name in said}
    beside = path.parent / fields["path"]
    described = replace(source, **fields)
    return described, beside if beside.exists() else _local(described.path)


def _local(name: str) -> Path | None:
    """The file, folder or pattern that ``name`` means, or None for a Hub id. Raises ``RowsError`` if it is neither."""
    if name in ("", "???"):
        raise RowsError("data.sources path: expected a file, a folder or a Hub id, got nothing")
    package = Path(data_specs.__file__).resolve().parent.parent
    for path in (Path(name).expanduser(), package / name):
        if path.exists() or _matches(path):
            return path
    looks_local = name.endswith((*FORMATS, *DESCRIPTIONS)) or name.startswith((".", "/", "~"))
    if looks_local or name.count("/") > 1 or _is_pattern(name):
        raise RowsError(f"data.sources path {name}: no such file or folder, here or in {package}")
    return None


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _matches(pattern: Path) -> list[Path]:
    """The files that a glob pattern matches, sorted by name."""
    if not _is_pattern(str(pattern)):
        return []
    root = Path(pattern.anchor) if pattern.anchor else Path()
    return sorted(path for path in root.glob(str(pattern.relative_to(root))) if path.is_file())


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.exists():
        return _matches(path)
    # Archive programs and editors leave hidden copies in folders. These are not data.
    found = (file for file in path.rglob("*") if file.name[0] != "." and file.is_file())
    if files := sorted(file for file in found if file.name.endswith(FORMATS)):
        return files
    raise RowsError(f"{path}: expected files of these kinds in this folder: {', '.join(FORMATS)}; found none")


def _file_rows(path: Path) -> Iterator[Row | Rejection]:
    if not path.name.endswith(FORMATS):
        raise RowsError(f"{path}: expected a file of one of these kinds: {', '.join(FORMATS)}")
    return _parquet_rows(path) if path.suffix == ".parquet" else _text_rows(path)


def _text_rows(path: Path) -> Iterator[Row | Rejection]:
    """The rows of a text file, which may be compressed."""
    readers = {".jsonl": _jsonl_rows, ".json": _json_rows, ".csv": _csv_rows}
    reader = readers[Path(path.name.removesuffix(".gz")).suffix]
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as handle:
            yield from reader(path, cast(IO[bytes], handle))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise RowsError(f"{path}: expected a whole gzip file, got: {error}") from None


def _jsonl_rows(path: Path, handle: IO[bytes]) -> Iterator[Row | Rejection]:
    for number, line in enumerate(handle, 1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)  # Some editors put this mark at the start of a file.
        if line.strip():
            yield _parsed(line, f"{path}, line {number}")


def _json_rows(path: Path, handle: IO[bytes]) -> Iterator[Row | Rejection]:
    """The rows of a .json file: a list of objects, an object with one such list, one row, or one object per line."""
    text = handle.read()
    try:
        found = json.loads(text)
    except RecursionError:
        raise RowsError(f"{path}: expected JSON, got brackets that are nested too deeply to read") from None
    except ValueError as error:
        if "Extra data" not in str(error):
            raise RowsError(f"{path}: expected JSON, got: {error}") from None
        yield from _jsonl_rows(path, io.BytesIO(text))
        return
    for number, row in enumerate(_rows_in(found)):
        if not isinstance(row, dict):
            raise RowsError(f"{path}, row {number}: expected an object, got {type(row).__name__}")
        yield row


def _rows_in(found: Any) -> list[Any]:
    """The rows in the value of a .json file."""
    if not isinstance(found, dict) or any(found.get(name) is not None for name in FIELDS):
        return found if isinstance(found, list) else [found]
    lists = [value for value in found.values() if isinstance(value, list)]
    return lists[0] if len(lists) == 1 else [found]


def _parsed(line: bytes, where: str) -> Row | Rejection:
    try:
        row = json.loads(line)
    except RecursionError:
        return Rejection("nested_too_deeply")
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RowsError(f"{where}: expected JSON, got: {error}") from None
    except ValueError:  # Python refuses whole numbers of more than 4,300 digits.
        return Rejection("number_too_long")
    if not isinstance(row, dict):
        raise RowsError(f"{where}: expected an object, got {type(row).__name__}")
    return row


def _csv_rows(path: Path, handle: IO[bytes]) -> Iterator[Row]:
    """The rows of a .csv file with a header. A cell may hold a list or an object as JSON, such as ``messages``."""
    reader = csv.DictReader(io.TextIOWrapper(handle, encoding="utf-8-sig", newline=""), strict=True)
    try:
        for row in reader:
            if None in row or None in row.values():
                expected = len(reader.fieldnames or ())
                raise RowsError(
                    f"{path}, line {reader.line_num}: expected {expected} cells, as the header has"
                )
            yield {name: _cell(value) for name, value in row.items()}
    except (UnicodeDecodeError, csv.Error) as error:
        raise RowsError(f"{path}, line {reader.line_num}: expected CSV in UTF-8, got: {error}") from None


def _cell(value: str) -> Any:
    """The list or object that a cell holds as JSON, or else its text. An empty cell counts as absent."""
    if value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value or None


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for batch in pq.ParquetFile(path).iter_batches(1024):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise RowsError(f"{path}: expected a Parquet file, got: {error}") from error


def _dataset_rows(source: SourceConfig, name: str) -> Iterator[Row]:
    """The rows of a Hub data set, or of a folder with the layout of one."""
    import datasets

    with dataset_errors(f"data.sources path {name}, subset {source.subset}, split {source.split}"):
        yield from datasets.load_dataset(name, source.subset, split=source.split, revision=source.revision)


@contextmanager
def dataset_errors(said: str) -> Iterator[None]:
    """Raise ``RowsError`` that begins with ``said`` if the datasets library fails in the block."""
    from datasets.exceptions import DatasetsError

    try:
        yield
    # Other people's files make that library raise errors of all these types.
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, DatasetsError) as error:
        raise RowsError(f"{said}: {type(error).__name__}: {error}") from error
