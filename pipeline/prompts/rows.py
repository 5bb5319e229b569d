"""Rows of data sets as messages: reading them, bringing them to one form, naming what cannot be used.

A conversation is a list of ``{"role", "content"}`` with the roles system (first only), user, assistant and
tool; an assistant's message may carry ``reasoning_content`` and ``tool_calls``. Two user messages in a row
mean that the answer between them is yet to be made (``turns``).
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import data_specs
from data_specs.errors import UserError
from data_specs.manifest import canonical
from pipeline.config import SourceConfig

Message = dict[str, Any]
ROLES = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
    "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "bot": "assistant", "tool": "tool",
    "observation": "tool",
}  # fmt: skip
FORMATS = (".jsonl", ".parquet")
FIELDS = ("messages", "conversations", "turns", "prompt", "instruction")
REASONING = ("reasoning_content", "reasoning", "thinking")


class RowsError(UserError):
    """A source that cannot be read; the message names the source, and the line where there is one."""


@dataclass(frozen=True)
class Rejection:
    """Why a row cannot be used; the rows of one reason are counted together."""

    reason: str


class _RejectedError(Exception):
    """Carries the reason from where it is found to ``messages_of``."""


# --- reading ------------------------------------------------------------------------------------------------


def load_rows(source: SourceConfig) -> Iterator[dict[str, Any]]:
    """The rows of ``source``, at most ``source.limit``.

    ``source.path`` is a .jsonl or .parquet file, a folder of them, a .yaml file that describes a source (as
    those of data_specs/prompts do), or a Hub data set. A file or folder is looked for below the working
    directory, then beside the installed package. Raises ``RowsError`` naming the source, and the line where
    there is one.
    """
    source, path = _described(source)
    if path is None or (path.is_dir() and source.subset is not None):
        rows = _dataset_rows(source, str(path or source.path))
    else:
        rows = itertools.chain.from_iterable(_file_rows(file) for file in _files(path))
    return itertools.islice(rows, source.limit)


def local_files(source: SourceConfig) -> list[Path]:
    """The local files that the rows of ``source`` come from; none for a Hub data set. Raises as ``load_rows``."""
    path = _described(source)[1]
    if path is None or path.is_file():
        return [] if path is None else [path]
    return sorted(file for file in path.rglob("*") if file.is_file())


def _described(source: SourceConfig) -> tuple[SourceConfig, Path | None]:
    """``source`` with its file or folder (None: on the Hub); one level of .yaml description is followed."""
    path = _local(source.path)
    if path is None or path.suffix not in (".yaml", ".yml"):
        return source, path
    import yaml

    said = yaml.safe_load(path.read_text())
    if not isinstance(said, dict) or not isinstance(said.get("path"), str):
        raise RowsError(f"{path}: expected a mapping with the field path, got {type(said).__name__}")
    fields = {name: said[name] for name in ("path", "subset", "split", "revision") if name in said}
    beside = path.parent / fields["path"]
    described = replace(source, **fields)
    return described, beside if beside.exists() else _local(described.path)


def _local(name: str) -> Path | None:
    """The file or folder that ``name`` means, or None for a Hub id; ``RowsError`` when it can be neither."""
    if name in ("", "???"):
        raise RowsError("data.sources path: expected a file, a folder or a Hub id, got nothing")
    package = Path(data_specs.__file__).resolve().parent.parent
    for path in (Path(name).expanduser(), package / name):
        if path.exists():
            return path
    if (
        Path(name).suffix in (*FORMATS, ".json", ".yaml", ".yml")
        or name.startswith((".", "/", "~"))
        or name.count("/") > 1
    ):
        raise RowsError(f"data.sources path {name}: no such file or folder, here or in {package}")
    return None


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix in FORMATS and file.is_file())
    if not files:
        raise RowsError(f"{path}: expected {' or '.join(FORMATS)} files in this folder, found none")
    return files


def _file_rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix not in FORMATS:
        raise RowsError(f"{path}: expected a {' or '.join(FORMATS)} file")
    return _jsonl_rows(path) if path.suffix == ".jsonl" else _parquet_rows(path)


def _jsonl_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as handle:
        for number, line in enumerate(handle, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:  # UnicodeDecodeError is one
                raise RowsError(f"{path}, line {number}: expected JSON, got: {error}") from None
            if not isinstance(row, dict):
                raise RowsError(f"{path}, line {number}: expected an object, got {type(row).__name__}")
            yield row


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for batch in pq.ParquetFile(path).iter_batches(1024):
            yield from batch.to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise RowsError(f"{path}: expected a Parquet file, got: {error}") from error


def _dataset_rows(source: SourceConfig, name: str) -> Iterator[dict[str, Any]]:
    """Rows of a Hub data set (or of a folder laid out like one) by ``datasets.load_dataset``."""
    import datasets

    try:
        yield from datasets.load_dataset(name, source.subset, split=source.split, revision=source.revision)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        said = f"data.sources path {name}, subset {source.subset}, split {source.split}"
        raise RowsError(f"{said}: {type(error).__name__}: {error}") from error


# --- one form -----------------------------------------------------------------------------------------------


def messages_of(row: dict[str, Any]) -> list[Message] | Rejection:
    """The conversation in the first known field of ``row`` that is not null, or why it cannot be used."""
    try:
        name = next((field for field in FIELDS if row.get(field) is not None), None)
        if name is None:
            known = [field for field in FIELDS if field in row]
            raise _RejectedError("null_content" if known else "no_known_fields")
        return _checked(_READERS[name](row), row, turns=name == "turns")
    except _RejectedError as rejected:
        return Rejection(str(rejected))


def _of_messages(row: dict[str, Any], field: str = "messages") -> list[Message]:
    value = row[field]
    if not isinstance(value, list):
        raise _RejectedError("not_a_list_of_messages")
    return [_message(item) for item in value]


def _of_conversations(row: dict[str, Any]) -> list[Message]:
    return _of_messages(row, "conversations")


def _of_turns(row: dict[str, Any]) -> list[Message]:
    """``turns``: what the user says, one text a turn."""
    if not isinstance(row["turns"], list):
        raise _RejectedError("not_a_list_of_turns")
    return [{"role": "user", "content": _text(turn)} for turn in row["turns"]]


def _of_prompt(row: dict[str, Any]) -> list[Message]:
    """``prompt``: a text, or the messages before the answer."""
    if isinstance(row["prompt"], list):
        return _of_messages(row, "prompt")
    return [{"role": "user", "content": _text(row["prompt"])}]


def _of_instruction(row: dict[str, Any]) -> list[Message]:
    """``instruction``, ``input`` (may be empty), ``output`` (the answer, may be absent)."""
    parts = [_text(row[name]) for name in ("instruction", "input") if row.get(name)]
    messages: list[Message] = [{"role": "user", "content": "\n\n".join(parts)}]
    if row.get("output"):
        messages.append({"role": "assistant", "content": _text(row["output"])})
    return messages


_READERS = {
    "messages": _of_messages,
    "conversations": _of_conversations,
    "turns": _of_turns,
    "prompt": _of_prompt,
    "instruction": _of_instruction,
}


def _message(item: Any) -> Message:
    """One message in our form; fields that are null (Parquet fills them in) count as absent."""
    if not isinstance(item, dict):
        raise _RejectedError("not_a_list_of_messages")
    role = ROLES.get(str(item.get("role") or item.get("from")).lower())
    if role is None:
        raise _RejectedError("unknown_role")
    message: Message = {"role": role}
    calls = item.get("tool_calls")
    if calls:
        message["tool_calls"] = [_tool_call(call) for call in calls]
    content = item.get("content", item.get("value"))
    message["content"] = "" if content is None and calls else _text(content)
    reasoning = next((item[name] for name in REASONING if item.get(name)), None)
    if reasoning is not None:
        message["reasoning_content"] = _text(reasoning)
    return message | {name: item[name] for name in ("name", "tool_call_id") if item.get(name)}


def _text(content: Any) -> str:
    """A message's text: a string, or a list of parts that are all text."""
    if content is None:
        raise _RejectedError("null_content")
    if isinstance(content, list) and content:
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            raise _RejectedError("non_text_content")
        return "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise _RejectedError("non_text_content")
    return content


def _tool_call(call: Any) -> dict[str, Any]:
    """A tool call with its arguments as an object, also where the data has them as JSON text (pitfall 10)."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _RejectedError("bad_tool_call")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            raise _RejectedError("bad_tool_call") from None
    if not isinstance(arguments, dict | None):
        raise _RejectedError("bad_tool_call")
    said = {"type": "function", "function": {"name": function["name"], "arguments": arguments or {}}}
    return said | ({"id": call["id"]} if call.get("id") else {})


def _checked(messages: list[Message], row: dict[str, Any], turns: bool) -> list[Message]:
    """``messages``, the row's own ``system`` before them, after the checks of a whole conversation."""
    if row.get("tools"):
        raise _RejectedError("tools_not_supported")
    if row.get("system") and not any(message["role"] == "system" for message in messages):
        messages = [{"role": "system", "content": _text(row["system"])}, *messages]
    spoken = messages[1:] if messages and messages[0]["role"] == "system" else messages
    roles = [message["role"] for message in spoken]
    if not messages:
        raise _RejectedError("empty")
    if not spoken:
        raise _RejectedError("system_only")
    if any(not m["content"].strip() and not m.get("tool_calls") for m in messages if m["role"] != "tool"):
        raise _RejectedError("empty_content")
    if roles[0] != "user":
        raise _RejectedError(f"{roles[0]}_first" if roles[0] != "system" else "system_not_first")
    for before, after in itertools.pairwise(roles):
        _check_order(before, after, turns)
    return messages


def _check_order(before: str, after: str, turns: bool) -> None:
    if after == "system":
        raise _RejectedError("system_not_first")
    if before == after == "user" and not turns:
        raise _RejectedError("two_users_in_a_row")
    if before == after == "assistant":
        raise _RejectedError("two_assistants_in_a_row")
    if after == "tool" and before == "user":
        raise _RejectedError("tool_without_a_call")


# --- naming and splitting -----------------------------------------------------------------------------------


def prompt_key(messages: list[Message]) -> str:
    """SHA-256 (hex) over role and content of all that is not an assistant's: same prompt, same key."""
    said = [[m["role"], m["content"]] for m in messages if m["role"] != "assistant"]
    return hashlib.sha256(canonical(said).encode()).hexdigest()


def split_of(key: str, heldout: float, benchmark: float) -> str:
    """``train``, ``heldout`` or ``benchmark``: from the key alone, the same whatever else the data hold.

    ``benchmark`` takes its share from the low end and ``heldout`` from the high end, so that a share that is
    changed never moves a prompt from the one to the other.
    """
    place = int(key[:13], 16) / 2**52  # as many bits as a float holds: below 1
    if place < benchmark:
        return "benchmark"
    return "heldout" if place >= 1 - heldout else "train"
