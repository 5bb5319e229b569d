"""Turns the text that a target generated into a message for the history of later turns, with its reasoning apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pipeline.prompts.rows import Message
from pipeline.prompts.template import control_tokens

# The marks that open and close reasoning. A generation prompt may already open it.
MARKS = (("<think>", "</think>"), ("<|channel>thought", "<channel|>"), ("[THINK]", "[/THINK]"))
# gpt-oss: <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
HARMONY = re.compile(r"(?s)<\|channel\|>(\w+).*?<\|message\|>(.*?)(?=<\|(?:end|return|call|start)\|>|\Z)")


def reply_message(tokenizer: Any, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> Message | None:
    """The assistant's message in generated ids, or None if the answer was cut inside its reasoning.

    The tokenizer's own response template decides if there is one, else the marks of the known families. Special tokens
    are removed last, because without them reasoning and answer would run together.
    """
    prompt, text = tokenizer.decode(list(prompt_ids)), tokenizer.decode(list(answer_ids))
    parsed = _by_template(tokenizer, prompt, text)
    return parsed if parsed is not None else _by_marks(tokenizer, prompt, text)


def split_reasoning(text: str) -> Message:
    """An assistant's message from generated text. The text before a closing mark is its ``reasoning_content``."""
    for opening, closing in MARKS:
        reasoning, found, content = text.partition(closing)
        if found:
            message: Message = {"role": "assistant", "content": content.lstrip("\n")}
            reasoning = reasoning.strip().removeprefix(opening).strip()
            return message | ({"reasoning_content": reasoning} if reasoning else {})
    return {"role": "assistant", "content": text}


def opened(text: str) -> tuple[str, str] | None:
    """The marks of the reasoning that ``text`` opens and does not close, or None."""
    for opening, closing in MARKS:
        if text.rfind(opening) > text.rfind(closing):
            return opening, closing
    return None


def opens(prompt: str) -> tuple[str, str] | None:
    """The marks of the reasoning that a generation prompt opens at its end, or None."""
    return next((marks for marks in MARKS if prompt.rstrip().endswith(marks[0])), None)


def _by_template(tokenizer: Any, prompt: str, text: str) -> Message | None:
    if getattr(tokenizer, "response_template", None) is None:
        return None
    try:
        found = tokenizer.parse_response(text, prefix=prompt)
    except (ValueError, KeyError, TypeError):  # The target did not write what its template expects.
        return None
    reasoning = next(
        (found[name] for name in ("reasoning_content", "thinking", "reasoning") if found.get(name)), None
    )
    message: Message = {"role": "assistant", "content": found.get("content") or ""}
    if reasoning:
        message["reasoning_content"] = reasoning
    if found.get("tool_calls"):
        message["tool_calls"] = found["tool_calls"]
    return message


def _by_marks(tokenizer: Any, prompt: str, text: str) -> Message | None:
    if parts := HARMONY.findall(text):
        said: dict[str, str] = dict(parts)
        if "final" not in said:
            return None
        message: Message = {"role": "assistant", "content": _plain(tokenizer, said["final"])}
        reasoning = said.get("analysis", "").strip()
        return message | ({"reasoning_content": reasoning} if reasoning else {})
    marks = opens(prompt)
    if opened((marks[0] if marks else "") + text) is not None:
        return None
    message = split_reasoning(text)
    return {name: _plain(tokenizer, value) if name != "role" else value for name, value in message.items()}


def _plain(tokenizer: Any, text: str) -> str:
    """``text`` without its special tokens, such as the end of the turn."""
    for token in control_tokens(tokenizer):
        text = text.replace(token, "")
    return text
