"""JSON files whose contents are a dataclass: all fields are checked when a file is read.

A field with a default may be missing in the file, because an older version may have written it. ``Omitted[T]`` is a
field that is left out of the file if it is None.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from data_specs.manifest import ManifestError, read_json, write_json

T = TypeVar("T")
Omitted = Annotated[T | None, Field(exclude_if=lambda value: value is None)]


class RecordError(ManifestError):
    """A field of a JSON file is missing or of a wrong type; the message names the file and the field."""


def to_json(record: Any) -> dict[str, Any]:
    """The dictionaries, lists and numbers of the JSON of ``record``, a dataclass."""
    return dict(TypeAdapter(type(record)).dump_python(record, mode="json", by_alias=True))


def write_record(path: Path, record: Any) -> None:
    """Write ``record``, a dataclass, as JSON with sorted keys to ``path``, whole or not at all."""
    write_json(path, to_json(record))


def read_record(path: Path, kind: type[T]) -> T:
    """The JSON file at ``path`` as a ``kind``.

    Raises ``ManifestError`` if the file is missing or is no JSON, and ``RecordError`` with file, field, expected and
    got if a field is missing or of a wrong type.
    """
    return parse(read_json(path), kind, path)


def parse(values: Any, kind: type[T], path: Path) -> T:
    """``values``, read from the JSON file ``path``, as a ``kind``. Raises ``RecordError`` as ``read_record`` does."""
    try:
        # In strict mode, a list may become a tuple, but a text never becomes a number.
        record: T = TypeAdapter(kind).validate_json(json.dumps(values), strict=True)
        return record
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    field = ".".join(map(str, first["loc"])) or "the whole file"
    missing = first["type"] == "missing"
    expected = "a value" if missing else first["msg"].removeprefix("Input should be ")
    got = "no such field" if missing else f"{first['input']!r:.80}"
    raise RecordError(
        f"{path}: {field}: expected {expected}, got {got}; the file was edited, or another version of draftline wrote "
        "it: make the artifact again"
    )
