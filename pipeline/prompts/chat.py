"""Turns messages into the ids of a prompt and the supervised ids after it, in the same way for every stage.

The supervised ids are exactly what the target would generate after the prompt that a server gives it, including its end
of turn. No text is searched for role markers: an answer is what follows a rendered prompt, so a user may write
``<|im_start|>assistant`` without any effect. Ids that an engine returned are never decoded and encoded again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

from pipeline.prompts.replies import MARKS, opens, split_reasoning
from pipeline.prompts.rows import Message, Rejection, Tool
from pipeline.prompts.template import PROBE, TemplateRefusal, control_tokens, end_of_turn, render

# Marks around empty reasoning, which templates put before an answer without reasoning.
EMPTY = {marks: re.compile(rf"\s*{re.escape(marks[0])}\s*{re.escape(marks[1])}\s*") for marks in MARKS}


@dataclass(frozen=True)
class GivenRow:
    """One assistant turn of the data."""

    turn: int  # its number, from 0
    prompt_ids: list[int]  # the ids before the answer, with the generation prompt
    answer_ids: list[int]
    messages: list[Message]  # the conversation, ending with the assistant's message


def render_prompt(
    tokenizer: Any, messages: Sequence[Message], thinking: bool | None, tools: Sequence[Tool] = ()
) -> list[int]:
    """The ids of ``messages`` and the generation prompt after them, by the tokenizer's chat template.

    ``thinking`` sets the template's switch; None leaves the template's default. Raises ``TemplateRefusal``.
    """
    return _encode(tokenizer, render(tokenizer, messages, thinking, True, tools))


def given_rows(
    tokenizer: Any, messages: Sequence[Message], thinking: bool | None, tools: Sequence[Tool] = ()
) -> list[GivenRow] | Rejection:
    """One row for each assistant turn, with the history as the template renders it at that turn.

    Templates strip old reasoning, so the text of turn n need not be a prefix of the text of turn n+1 (pitfall 6).
    Therefore every turn has a row of its own.
    """
    rows: list[GivenRow] = []
    for end in (number + 1 for number, message in enumerate(messages) if message["role"] == "assistant"):
        ids = given_answer(tokenizer, messages[:end], thinking, tools)
        if isinstance(ids, Rejection):
            return ids
        rows.append(GivenRow(len(rows), *ids, list(messages[:end])))
    return rows or Rejection("no_answer")


def given_answer(
    tokenizer: Any, messages: Sequence[Message], thinking: bool | None, tools: Sequence[Tool] = ()
) -> tuple[list[int], list[int]] | Rejection:
    """The prompt ids and answer ids of ``messages``, the last of which is the assistant's answer in text form.

    The answer stops at the first end of turn in it, and always ends with one. The separator after it is dropped
    (pitfall 2). Empty reasoning that the template puts before an answer belongs to the prompt. Messages are rejected if
    the template refuses them or does not show an answer or its reasoning (pitfall 5), and if there is reasoning
    although thinking is off (pitfall 4).
    """
    answer = messages[-1]
    has_reasoning = "reasoning_content" in answer or "reasoning_content" in split_reasoning(answer["content"])
    if thinking is False and has_reasoning:
        return Rejection("reasoning_in_non_thinking_mode")
    try:
        prompt = render(tokenizer, messages[:-1], thinking, True, tools)
        before = render(tokenizer, messages[:-1], thinking, False, tools)
        whole = render(tokenizer, messages, thinking, False, tools)
        probed = [*messages[:-1], {"role": "assistant", "content": PROBE}]
        probe = render(tokenizer, probed, thinking, False, tools)
    except TemplateRefusal as error:
        return Rejection(error.reason)
    if prompt == before and (header := probe[len(before) : probe.find(PROBE)]).strip():
        prompt = before + header  # The template ignores add_generation_prompt.
    if (parted := _parted(prompt, whole, probe, _reasoning(answer))) is None:
        return Rejection("answer_does_not_follow_prompt")
    prompt, text = parted
    if (missing := _missing(answer, text)) is not None:
        return Rejection(missing)
    tail = probe.partition(PROBE)[2]
    return _split(tokenizer, prompt, _ended(tokenizer, text, tail), tail)


def _reasoning(answer: Message) -> str:
    """The reasoning of an answer, from its own field or from the text; empty if there is none."""
    own = answer.get("reasoning_content")
    return str(own or split_reasoning(answer["content"]).get("reasoning_content", ""))


def _parted(prompt: str, whole: str, probe: str, reasoning: str) -> tuple[str, str] | None:
    """``prompt`` and the text that the target would generate after it, or None if the template's texts do not agree.

    The generation prompt may open reasoning (R1) or close it at once (Gemma 4 without thinking), while a rendered
    answer leaves it out.
    """
    shared = len(commonprefix([prompt, probe]))
    opening, text = prompt[shared:], whole[shared:]
    if not whole.startswith(prompt[:shared]):
        return None
    if opening.strip():
        return _after_opening(prompt, opening, text, reasoning)
    text = whole[len(prompt) :] if whole.startswith(prompt) else text
    if reasoning:
        return prompt, text
    lead = commonprefix(
        [text, probe[len(whole) - len(text) :]]
    )  # what the template writes before every answer
    for marks, empty in EMPTY.items():
        start = marks[0] if opens(prompt) == marks else ""
        if (match := empty.match(start + lead) or empty.match(start + text)) is not None:
            end = match.end() - len(start)
            return prompt + text[:end], text[end:]
    return prompt, text


def _after_opening(prompt: str, opening: str, text: str, reasoning: str) -> tuple[str, str] | None:
    """``_parted`` for a generation prompt that ends with an ``opening`` that rendered answers lack."""
    if closed := next((marks for marks, empty in EMPTY.items() if empty.fullmatch(opening)), None):
        again = (
            rf"\A\s*{re.escape(closed[0])}\s*{re.escape(closed[1])}"  # GLM writes this before every answer
        )
        return None if reasoning else (prompt, re.sub(again, "", text))
    if (marks := opens(opening)) is None:
        return None
    close, text = f"\n{marks[1]}\n\n", text.lstrip("\n")
    return (prompt, f"{reasoning.strip()}{close}{text}") if reasoning else (prompt + close, text)


def _missing(answer: Message, shown: str) -> str | None:
    """The reason for a rejection if ``shown``, which the template rendered, lacks a part of ``answer``."""
    content = split_reasoning(answer["content"])["content"].strip()
    for part, reason in ((_reasoning(answer).strip(), "reasoning"), (content, "answer")):
        if part not in shown:
            return f"{reason}_not_rendered"
        shown = shown.replace(part, "", 1)  # this part may name the tools
    if not all(call["function"]["name"] in shown for call in answer.get("tool_calls", ())):
        return "tool_call_not_rendered"
    return None


def _ended(tokenizer: Any, text: str, tail: str) -> str:
    """``text`` with its end of turn, but without the separator. ``tail`` is what the template writes after answers."""
    if tail and text.endswith(tail):
        text = text.removesuffix(tail) + tail.rstrip()
    elif tail.strip():
        text = text.rstrip()
    if text.endswith(control_tokens(tokenizer)):
        return text
    return text + (end_of_turn(tokenizer) or tokenizer.eos_token or "")


def _split(tokenizer: Any, prompt: str, text: str, tail: str) -> tuple[list[int], list[int]]:
    """The ids of ``prompt``, and of ``text`` after it up to the first end of turn. ``tail`` is as in ``_ended``.

    If a token would span the boundary, the text is encoded by itself, because a target that is given the prompt's ids
    starts a new token there.
    """
    prompt_ids, ids = _encode(tokenizer, prompt), _encode(tokenizer, prompt + text)
    aligned = ids[: len(prompt_ids)] == prompt_ids
    answer = ids[len(prompt_ids) :] if aligned else _encode(tokenizer, text)
    special = set(tokenizer.convert_tokens_to_ids(control_tokens(tokenizer)))
    ends = {tokenizer.eos_token_id, *answer[-1:], *_encode(tokenizer, tail.strip())[:1]} & special
    end = next((place for place, token in enumerate(answer) if token in ends), len(answer))
    return prompt_ids, answer[: end + 1]


def _encode(tokenizer: Any, text: str) -> list[int]:
    """The ids of rendered text, in which the template has already written the special tokens."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
