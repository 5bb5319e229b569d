"""Reads the benchmarks of data_specs/benchmarks/*.yaml: turns rows of the Hub or of a local file into user turns."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml

import data_specs
from pipeline.config import ConfigError, SourceConfig, rules
from pipeline.config.rules import one_of
from pipeline.prompts.rows import (
    FIELDS,
    Message,
    Rejection,
    Tool,
    asked,
    messages_of,
    prompt_key,
    split_of,
    tools_of,
)
from pipeline.prompts.sources import Row, dataset_errors, load_rows

FOLDER = Path(data_specs.__file__).parent / "benchmarks"
READY = ("turns", "messages")  # fields of a row that needs no wording


@dataclass(frozen=True)
class Wording:
    """How a row becomes user turns: by templates, or from a field that holds the list of turns.

    If ``when`` names a field, this wording is only for rows in which that field is not empty.
    """

    turns: list[str] = field(default_factory=list)
    turns_field: str | None = None
    when: str | None = None


@dataclass(frozen=True)
class Share:
    """The part of a source that the stable hash puts into ``split`` (see pipeline.prompts.rows.split_of)."""

    split: Annotated[str, one_of("train", "heldout", "benchmark")]
    heldout: rules.Share
    benchmark: rules.Share


@dataclass(frozen=True)
class Benchmark:
    """One file of data_specs/benchmarks. ``path`` is a Hub id, or a local file relative to that folder."""

    name: str
    path: str
    subset: str | None = None
    split: str = "train"
    revision: str | None = None
    # JSONL files of the Hub repository, if the datasets library cannot load the repository by its name
    files: list[str] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)  # fields of a row that the wording uses
    # The first wording that fits a row is used. Without any, the rows hold turns.
    wording: list[Wording] = field(default_factory=list)
    where: dict[str, str] = field(default_factory=dict)  # only rows with these values are used
    share: Share | None = None


@dataclass(frozen=True)
class Prompt:
    """One prompt of a benchmark. The target answers its user messages one after the other, with ``tools``."""

    benchmark: str
    index: int  # its place among the selected prompts of the benchmark
    key: str
    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)


Made = TypeVar("Made", Wording, Share, Benchmark)


def load_benchmark(name: str, folder: Path = FOLDER) -> Benchmark:
    """Read and check ``<name>.yaml``. Raises ``ConfigError`` that names a bad key, or lists the known benchmarks."""
    path = folder / f"{name}.yaml"
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in folder.glob("*.yaml")))
        raise ConfigError(f"evaluate.benchmarks: expected one of {there}, got {name!r}")
    values = yaml.safe_load(path.read_text())
    wording = [_made(Wording, item, path, "wording.") for item in values.pop("wording", [])]
    share = _made(Share, values.pop("share"), path, "share.") if "share" in values else None
    benchmark = _made(Benchmark, values | {"wording": wording, "share": share}, path, "")
    _check(benchmark, path)
    return benchmark


def load_prompts(
    benchmark: Benchmark, file: str | None = None, limit: int | None = None, folder: Path = FOLDER
) -> list[Prompt]:
    """At most ``limit`` prompts of ``benchmark``, read from the local ``file``, if given, instead of the Hub.

    A limit keeps the prompts with the smallest keys. Keys are hashes, so this choice is as good as a random one, is the
    same on every machine, and a larger limit only adds prompts. Raises ``ConfigError`` if no prompt is left.
    """
    rows = [_asked(benchmark, row, where) for where, row in _rows(benchmark, file, folder)]
    keyed = [(prompt_key(*said), said) for said in rows]
    if benchmark.share is not None and file is None:
        share = benchmark.share
        keyed = [(k, m) for k, m in keyed if split_of(k, share.heldout, share.benchmark) == share.split]
    if not keyed:
        raise ConfigError(
            f"benchmark {benchmark.name}: expected a prompt in {file or benchmark.path}, found none"
        )
    return chosen(benchmark.name, keyed, limit)


def chosen(
    name: str, keyed: Sequence[tuple[str, tuple[list[Message], list[Tool]]]], limit: int | None
) -> list[Prompt]:
    """At most ``limit`` of the pairs ``keyed``, (key, (messages, tools)), as prompts of benchmark ``name`` in order."""
    if limit is not None:
        smallest = sorted(range(len(keyed)), key=lambda i: (keyed[i][0], i))[:limit]
        keyed = [keyed[i] for i in sorted(smallest)]
    return [Prompt(name, i, key, *said) for i, (key, said) in enumerate(keyed)]


def _rows(benchmark: Benchmark, file: str | None, folder: Path) -> Iterator[tuple[str, Row]]:
    """(place to name in errors, row) for each row that has the values of ``benchmark.where``."""
    source = file or benchmark.path
    for number, row in enumerate(_read(benchmark, file, folder)):
        if isinstance(row, Rejection):
            raise ConfigError(f"benchmark {benchmark.name}: {source}, row {number}: not usable: {row}")
        if file is not None or all(row.get(key) == value for key, value in benchmark.where.items()):
            yield f"{source}, row {number}", row


def _read(benchmark: Benchmark, file: str | None, folder: Path) -> Iterable[Row | Rejection]:
    if file is not None:
        if not Path(file).expanduser().exists():
            raise ConfigError(f"evaluate.files.{benchmark.name}={file}: no such file")
        return load_rows(SourceConfig(path=str(Path(file).expanduser())))
    local = (folder / benchmark.path).resolve()
    if local.exists():
        return load_rows(SourceConfig(path=str(local)))
    if benchmark.files:
        return _hub_files(benchmark)
    return load_rows(SourceConfig(benchmark.path, benchmark.subset, benchmark.split, benchmark.revision))


def _hub_files(benchmark: Benchmark) -> Iterable[Row]:
    """Rows of the benchmark's JSONL files on the Hub, with only the columns that the wording uses."""
    import datasets

    base = f"hf://datasets/{benchmark.path}@{benchmark.revision or 'main'}"
    files = [f"{base}/{name}" for name in benchmark.files]
    with dataset_errors(f"benchmark {benchmark.name}: {base}"):
        dataset = datasets.load_dataset("json", data_files=files, split="train")
        rows: Iterable[Row] = dataset.select_columns(benchmark.fields)
    return rows


def _asked(benchmark: Benchmark, row: Row, where: str) -> tuple[list[Message], list[Tool]]:
    """The system and user messages of one row, and its tools, without answers, because the target gives its own.

    Raises ``ConfigError`` that names the row and says why it cannot be used.
    """
    worded = _worded(benchmark, row, where)
    messages, tools = messages_of(worded), tools_of(worded)
    if isinstance(messages, Rejection) or isinstance(tools, Rejection):
        why = messages if isinstance(messages, Rejection) else tools
        raise ConfigError(f"benchmark {benchmark.name}: {where}: not usable: {why}")
    return asked(messages), tools


def _worded(benchmark: Benchmark, row: Row, where: str) -> Row:
    """The row's ``turns`` or ``messages`` unchanged, or turns worded from its fields, or a row that training reads."""
    if any(row.get(name) is not None for name in READY):
        return {name: row[name] for name in (*READY, "system", "tools") if row.get(name) is not None}
    if benchmark.wording and all(name in row for name in benchmark.fields):
        wording = next(w for w in benchmark.wording if w.when is None or row[w.when])
        return {"turns": _turns(wording, row)}
    if any(row.get(name) is not None for name in FIELDS):
        return row
    known = f"one of {list(FIELDS)}"
    expected = f"{benchmark.fields}, or {known}" if benchmark.wording else known
    raise ConfigError(f"benchmark {benchmark.name}: {where}: expected {expected}, got {sorted(row)}")


def _turns(wording: Wording, row: Row) -> list[str]:
    if wording.turns_field is None:
        return [template.format_map(row) for template in wording.turns]
    turns = row[wording.turns_field]
    return [turns] if isinstance(turns, str) else turns


def _made(kind: type[Made], values: Any, path: Path, prefix: str) -> Made:
    known = kind.__dataclass_fields__
    if not isinstance(values, dict) or not set(values) <= set(known):
        got = sorted(set(values) - set(known)) if isinstance(values, dict) else values
        raise ConfigError(f"{path}: {prefix or 'keys'}: expected some of {sorted(known)}, got {got}")
    try:
        made = kind(**values)
    except TypeError as error:
        raise ConfigError(f"{path}: {prefix}{error}") from None
    rules.check_fields(made, f"{path}: {prefix}")
    return made


def _check(benchmark: Benchmark, path: Path) -> None:
    """Check that the wording uses exactly the fields in ``fields``, and that every row has a wording."""
    used: set[str] = set()
    for wording in benchmark.wording:
        if bool(wording.turns) == bool(wording.turns_field):
            raise ConfigError(f"{path}: wording: expected either turns or turns_field, got {wording}")
        parts = (part for template in wording.turns for part in string.Formatter().parse(template))
        used |= {name for _, name, _, _ in parts if name is not None}
        used |= {name for name in (wording.turns_field, wording.when) if name is not None}
    if used != set(benchmark.fields):
        raise ConfigError(
            f"{path}: fields: expected those of the wording, {sorted(used)}, got {benchmark.fields}"
        )
    if benchmark.wording and benchmark.wording[-1].when is not None:
        raise ConfigError(
            f"{path}: wording: expected no `when` in the last one, which is for all other rows, got when: "
            f"{benchmark.wording[-1].when}"
        )
