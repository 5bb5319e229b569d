"""Messages -> token ids and the mask of supervised tokens, the same in answers, training and evaluation.

Supervised are the tokens that the target generated and nothing else. No text is searched for role markers: an
answer is what follows a rendered prompt, so a user may write ``<|im_start|>assistant`` without any effect on
the mask. Ids that an engine returned are never decoded and encoded again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.prompts.rows import Message, Rejection

EMPTY_THINKING = re.compile(r"<think>\s*</think>\s*")  # what templates put before an answer without reasoning
END_OF_THINKING = "</think>"


class TemplateRefusal(ValueError):
    """The chat template raised: it cannot render these messages (no system role, say)."""


@dataclass(frozen=True)
class GivenRow:
    """One assistant turn of the data: ids before it (generation prompt included), its own ids, its number."""

    turn: int
    prompt_ids: list[int]
    answer_ids: list[int]
    messages: list[Message]  # up to and with the assistant's


def render_prompt(tokenizer: Any, messages: Sequence[Message], thinking: bool | None) -> list[int]:
    """Ids of ``messages`` followed by the generation prompt, by the tokenizer's chat template.

    ``thinking`` is the template's ``enable_thinking``; None leaves its default. Raises ``TemplateRefusal``.
    """
    return _encode(tokenizer, _render(tokenizer, messages, thinking, answer_follows=True))


def training_row(
    prompt_ids: Sequence[int], answer_ids: Sequence[int], max_length: int
) -> tuple[list[int], list[bool]]:
    """Ids [S] and mask [S] of a sample, cut to ``max_length``; the mask is True at exactly the answer's ids.

    A mask without any True (the prompt alone fills ``max_length``) is for the caller to leave out (pitfall
    11).
    """
    ids = [*prompt_ids, *answer_ids][:max_length]
    return ids, [position >= len(prompt_ids) for position in range(len(ids))]


def split_reasoning(text: str) -> Message:
    """An assistant's message from generated text: what is before ``</think>`` is ``reasoning_content``."""
    reasoning, found, content = text.partition(END_OF_THINKING)
    if not found:
        return {"role": "assistant", "content": text}
    message: Message = {"role": "assistant", "content": content.lstrip("\n")}
    reasoning = reasoning.strip().removeprefix("<think>").strip()
    return message | ({"reasoning_content": reasoning} if reasoning else {})


def given_rows(
    tokenizer: Any, messages: Sequence[Message], thinking: bool | None
) -> list[GivenRow] | Rejection:
    """One row an assistant turn, each with the history as the template renders it at that turn.

    Templates strip old reasoning, so turn n is no prefix of turn n+1 (pitfall 6); rows of their own need
    none.
    """
    rows: list[GivenRow] = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        ids = given_answer(tokenizer, messages[: number + 1], thinking)
        if isinstance(ids, Rejection):
            return ids
        rows.append(GivenRow(len(rows), *ids, list(messages[: number + 1])))
    return rows or Rejection("no_answer")


def given_answer(
    tokenizer: Any, messages: Sequence[Message], thinking: bool | None
) -> tuple[list[int], list[int]] | Rejection:
    """Prompt ids and answer ids of ``messages``, whose last one is the assistant's answer in text form.

    The answer ends with the end-of-turn token that the template writes; the separator after it is dropped
    (pitfall 2). An empty thinking block that the template puts before an answer without reasoning belongs to
    the prompt. Rejected: messages that the template refuses, an answer or reasoning that it does not show
    (pitfall 5), and reasoning where thinking is off (pitfall 4).
    """
    answer = messages[-1]
    has_reasoning = "reasoning_content" in answer or "reasoning_content" in split_reasoning(answer["content"])
    if thinking is False and has_reasoning:
        return Rejection("reasoning_in_non_thinking_mode")
    try:
        prompt = _render(tokenizer, messages[:-1], thinking, answer_follows=True)
        whole = _render(tokenizer, messages, thinking, answer_follows=False).rstrip()
    except TemplateRefusal:
        return Rejection("refused_by_template")
    if not whole.startswith(prompt):
        return Rejection("answer_does_not_follow_prompt")
    if not has_reasoning and (empty := EMPTY_THINKING.match(whole, len(prompt))):
        prompt = whole[: empty.end()]
    if (missing := _missing(answer, whole[len(prompt) :])) is not None:
        return Rejection(missing)
    return _split(tokenizer, prompt, whole)


def _missing(answer: Message, shown: str) -> str | None:
    """The reason for a rejection when ``shown``, the template's rendering, lacks a part of ``answer``."""
    if answer.get("reasoning_content", "").strip() not in shown:
        return "reasoning_not_rendered"
    if answer["content"].rpartition(END_OF_THINKING)[2].strip() not in shown:
        return "answer_not_rendered"
    if not all(call["function"]["name"] in shown for call in answer.get("tool_calls", ())):
        return "tool_call_not_rendered"
    return None


def _split(tokenizer: Any, prompt: str, whole: str) -> tuple[list[int], list[int]]:
    """Ids of ``prompt`` and of the rest of ``whole``.

    Where a token would span the boundary, the rest is encoded by itself: a target that is fed the prompt's
    ids starts a new token there.
    """
    prompt_ids, ids = _encode(tokenizer, prompt), _encode(tokenizer, whole)
    if ids[: len(prompt_ids)] == prompt_ids:
        return prompt_ids, ids[len(prompt_ids) :]
    return prompt_ids, _encode(tokenizer, whole[len(prompt) :])


def _render(tokenizer: Any, messages: Sequence[Message], thinking: bool | None, answer_follows: bool) -> str:
    from jinja2 import TemplateError

    options = {} if thinking is None else {"enable_thinking": thinking}
    # A template is other people's code on other people's data: what it raises depends on both.
    raised = (
        TemplateError,
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        RecursionError,
        ArithmeticError,
    )
    try:
        return tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=answer_follows, **options
        )
    except raised as error:
        raise TemplateRefusal(
            f"the chat template refused the messages: {type(error).__name__}: {error}"
        ) from error


def _encode(tokenizer: Any, text: str) -> list[int]:
    """Ids of rendered text (the template has written the special tokens already)."""
    return tokenizer(text, add_special_tokens=False)["input_ids"]
