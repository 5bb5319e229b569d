"""Turns rows of data sets into conversations of one form. A row that cannot be used becomes a rejection with a reason.

A conversation is a list of ``{"role", "content"}`` with the roles system (first only), user, assistant and tool. An
assistant's message may have ``reasoning_content`` and ``tool_calls``. If a row has ``turns``, user messages follow each
other, and the target will answer each of them.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from data_specs.manifest import canonical

Message = dict[str, Any]
# OpenAI's form: {"type": "function", "function": {"name", "description", "parameters"}}
Tool = dict[str, Any]
ROLES = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
    "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "bot": "assistant", "tool": "tool",
    "observation": "tool",
}  # fmt: skip
ANSWERS = (
    "response",
    "completion",
    "answer",
    "output",
)  # fields that may stand beside ``prompt`` or ``question``
REASONING = ("reasoning_content", "reasoning", "thinking")
MOST_NESTED = (
    64  # most levels of lists and objects inside a tool call; templates and JSON writers fail far above
)
MOST_NAMED = 8  # a rejection names at most this many fields of an unknown row


@dataclass(frozen=True)
class Rejection:
    """Why a row cannot be used. Rows with the same ``reason`` are counted together."""

    reason: str
    detail: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


class _RejectedError(Exception):
    """Carries the reason of a rejection to the function that returns it."""


# --- one form -----------------------------------------------------------------------------------------------


def messages_of(row: dict[str, Any] | Rejection) -> list[Message] | Rejection:
    """The conversation in the first known field of ``row`` that is not null, or why the row cannot be used."""
    if isinstance(row, Rejection):
        return row
    try:
        name = next((name for name in FIELDS if row.get(name) is not None), None)
        if name is None:
            return Rejection("null_content") if any(name in row for name in FIELDS) else _unknown(row)
        return _checked(_READERS[name](row), row, turns=name == "turns")
    except _RejectedError as rejected:
        return Rejection(str(rejected))


def tools_of(row: dict[str, Any] | Rejection) -> list[Tool] | Rejection:
    """The definitions of tools beside a conversation or in its request, or an empty list if there are none.

    They may be JSON text. If they are not a list of named functions, the row is rejected as ``bad_tools``.
    """
    if isinstance(row, Rejection):
        return row
    parts = [row, row.get("body"), request := row.get("request")]
    parts.append(request.get("body") if isinstance(request, dict) else None)
    given: Any = next((part["tools"] for part in parts if isinstance(part, dict) and part.get("tools")), [])
    try:
        listed = _plain(given, "bad_tools")
        if not isinstance(listed, list):
            return Rejection("bad_tools")
        tools = [_tool(item) for item in listed]
        _check_writable(tools)
    except _RejectedError as rejected:
        return Rejection(str(rejected))
    return tools


def calls_of(calls: Any) -> list[dict[str, Any]]:
    """The tool calls of a server's reply, with arguments as objects. Raises ``TypeError`` for a malformed call."""
    try:
        return [_tool_call(call) for call in calls or ()]
    except _RejectedError as rejected:
        raise TypeError(str(rejected)) from None


def _unknown(row: dict[str, Any]) -> Rejection:
    found = sorted(row)[:MOST_NAMED]
    return Rejection("no_known_fields", f"looked for {', '.join(FIELDS)}; found {', '.join(found) or 'none'}")


def _of_messages(row: dict[str, Any], name: str = "messages") -> list[Message]:
    value = row[name]
    if isinstance(value, str):
        value = _plain(value, "not_a_list_of_messages")
    if not isinstance(value, list):
        raise _RejectedError("not_a_list_of_messages")
    return [_message(item) for item in value]


def _of_body(row: dict[str, Any]) -> list[Message]:
    """A line of an OpenAI batch file: ``body`` is the request, and ``response`` may stand beside it."""
    return _of_exchange(row["body"], row.get("response"))


def _of_request(row: dict[str, Any]) -> list[Message]:
    """A line of an OpenAI-compatible server's log: ``request`` and ``response``, each with or without ``body``."""
    request = row["request"]
    body = request.get("body", request) if isinstance(request, dict) else None
    return _of_exchange(body, row.get("response"))


def _of_exchange(request: Any, response: Any) -> list[Message]:
    if not isinstance(request, dict) or not isinstance(request.get("messages"), list | str):
        raise _RejectedError("request_without_messages")
    messages = _of_messages(request)
    if response is None:
        return messages
    body = response.get("body", response) if isinstance(response, dict) else None
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise _RejectedError("response_without_choices")
    return [*messages, _message(choices[0].get("message"))]


def _of_chosen(row: dict[str, Any]) -> list[Message]:
    """The preferred answer of a pair ``chosen`` / ``rejected``: a whole conversation, or what follows ``prompt``."""
    chosen = row["chosen"]
    if isinstance(chosen, list):
        messages = _of_messages(row, "chosen")
        if not messages or messages[0]["role"] != "assistant":
            return messages
    else:
        messages = [{"role": "assistant", "content": _text(chosen)}]
    if row.get("prompt") is None:
        raise _RejectedError("chosen_without_prompt")
    return [*_said_first(row["prompt"]), *messages]


def _of_turns(row: dict[str, Any]) -> list[Message]:
    """``turns``: the user's texts, one for each turn."""
    if not isinstance(row["turns"], list):
        raise _RejectedError("not_a_list_of_turns")
    return [{"role": "user", "content": _text(turn)} for turn in row["turns"]]


def _of_prompt(row: dict[str, Any]) -> list[Message]:
    """``prompt``, and the answer in one of ``ANSWERS`` if there is one. Each is a text or a list of messages."""
    return [*_said_first(row["prompt"]), *_answer(row)]


def _of_question(row: dict[str, Any]) -> list[Message]:
    """``question``, and the answer in one of ``ANSWERS`` if there is one."""
    return [{"role": "user", "content": _text(row["question"])}, *_answer(row)]


def _said_first(prompt: Any) -> list[Message]:
    if isinstance(prompt, list):
        return [_message(item) for item in prompt]
    return [{"role": "user", "content": _text(prompt)}]


def _answer(row: dict[str, Any]) -> list[Message]:
    given: Any = next((row[name] for name in ANSWERS if row.get(name)), None)
    first = given[0] if isinstance(given, list) else None
    if isinstance(first, dict) and ("role" in first or "from" in first):
        return [_message(item) for item in given]
    return [] if given is None else [{"role": "assistant", "content": _text(given)}]


def _of_instruction(row: dict[str, Any]) -> list[Message]:
    """``instruction``, ``input`` (may be empty), and ``output`` or another of ``ANSWERS`` (may be absent)."""
    parts = [_text(row[name]) for name in ("instruction", "input") if row.get(name)]
    return [{"role": "user", "content": "\n\n".join(parts)}, *_answer(row)]


_READERS: dict[str, Callable[[dict[str, Any]], list[Message]]] = {
    "messages": _of_messages,
    "conversations": functools.partial(_of_messages, name="conversations"),
    "body": _of_body,
    "request": _of_request,
    "chosen": _of_chosen,
    "turns": _of_turns,
    "prompt": _of_prompt,
    "instruction": _of_instruction,
    "question": _of_question,
}
FIELDS = tuple(_READERS)


def _message(item: Any) -> Message:
    """One message in our form. A field that is null counts as absent, because Parquet fills absent fields with null."""
    if not isinstance(item, dict):
        raise _RejectedError("not_a_list_of_messages")
    role = ROLES.get(str(item.get("role") or item.get("from")).lower())
    if role is None:
        raise _RejectedError("unknown_role")
    message: Message = {"role": role}
    calls = item.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise _RejectedError("bad_tool_call")
        message["tool_calls"] = [_tool_call(call) for call in calls]
    content = item.get("content", item.get("value"))
    message["content"] = "" if content is None and calls else _text(content)
    reasoning = next((item[name] for name in REASONING if item.get(name)), None)
    if reasoning is not None:
        message["reasoning_content"] = _text(reasoning)
    return message | {name: _text(item[name]) for name in ("name", "tool_call_id") if item.get(name)}


def _text(content: Any) -> str:
    """The text of a message, which is a string or a list of parts that are all text."""
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
    """A tool call with its arguments as an object, even if the data have them as JSON text (pitfall 10)."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _RejectedError("bad_tool_call")
    arguments = _plain(function.get("arguments") or {}, "bad_tool_call")
    if not isinstance(arguments, dict | None):
        raise _RejectedError("bad_tool_call")
    said = {"type": "function", "function": {"name": function["name"], "arguments": arguments or {}}}
    return said | ({"id": _text(call["id"])} if call.get("id") else {})


def _tool(item: Any) -> Tool:
    """The definition of one tool. The data may have the function alone, or its parameters as JSON text."""
    tool = _plain(item, "bad_tools")
    if not isinstance(tool, dict):
        raise _RejectedError("bad_tools")
    function = tool.get("function", {name: value for name, value in tool.items() if name != "type"})
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _RejectedError("bad_tools")
    if "parameters" in function:
        function = function | {"parameters": _plain(function["parameters"], "bad_tools")}
    return {"type": "function", "function": function}


def _plain(value: Any, reason: str) -> Any:
    """The value of a JSON text, or ``value`` without nulls. A text that is not JSON is rejected for ``reason``."""
    try:
        return json.loads(value) if isinstance(value, str) else _without_nulls(value)
    except (ValueError, RecursionError):
        raise _RejectedError(reason) from None


def _without_nulls(value: Any, depth: int = 0) -> Any:
    """``value`` without null fields, because Parquet gives every struct of a column the keys of all the others."""
    if depth > MOST_NESTED:
        raise _RejectedError("nested_too_deeply")
    if isinstance(value, list):
        return [_without_nulls(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {name: _without_nulls(item, depth + 1) for name, item in value.items() if item is not None}
    return value


def _check_writable(value: Any, depth: int = 0) -> None:
    """Reject what JSON or a tokenizer cannot take: half a surrogate pair, NaN, nesting without end."""
    if depth > MOST_NESTED:
        raise _RejectedError("nested_too_deeply")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _RejectedError("lone_surrogate") from None
    elif isinstance(value, float) and not math.isfinite(value):
        raise _RejectedError("number_not_finite")
    elif isinstance(value, list):
        for item in value:
            _check_writable(item, depth + 1)
    elif isinstance(value, dict):
        for name, item in value.items():
            _check_writable(name)
            _check_writable(item, depth + 1)


def _checked(messages: list[Message], row: dict[str, Any], turns: bool) -> list[Message]:
    """``messages``, after the row's own ``system`` if it has one. Rejects what is not a whole conversation."""
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
    _check_writable(messages)
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


def prompt_key(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
    """SHA-256 (hex) over the tools and over role and content of every message that is not the assistant's."""
    said: list[Any] = [[m["role"], m["content"]] for m in messages if m["role"] != "assistant"]
    return hashlib.sha256(canonical([*said, *([list(tools)] if tools else [])]).encode()).hexdigest()


def asked(messages: list[Message]) -> list[Message]:
    """The system and user messages, which are put to a target that gives its own answers."""
    return [{"role": m["role"], "content": m["content"]} for m in messages if m["role"] in ("system", "user")]


def split_of(key: str, heldout: float, benchmark: float) -> str:
    """``train``, ``heldout`` or ``benchmark``. The key alone decides, so other data never change a prompt's split.

    ``benchmark`` takes its share from the low end and ``heldout`` from the high end, so that changing a share never
    moves a prompt from one to the other.
    """
    place = int(key[:13], 16) / 2**52  # below 1: 52 bits fit into a float exactly
    if place < benchmark:
        return "benchmark"
    return "heldout" if place >= 1 - heldout else "train"
