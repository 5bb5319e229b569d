"""A target's chat template: how messages, tools and switches are put into it, and where it ends a turn."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.config import ConfigError
from pipeline.prompts.rows import Message, Tool

if TYPE_CHECKING:
    from jinja2 import nodes

SWITCHES = ("enable_thinking", "thinking", "reasoning_effort")  # names that templates give to the same thing
EFFORT = {True: "high", False: "low"}  # of ``reasoning_effort``, which knows no plain off
# What every template is given or may call; a setting of the same name would break it.
GIVEN = frozenset({"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"})
PROBE = "\N{SNOWMAN}"  # stands for an answer; no template writes it by itself
GENERATION = re.compile(
    r"{%-?\s*(?:end)?generation\s*-?%}"
)  # an extension of transformers that marks answers
# A template is other people's code on other people's data: what it raises depends on both.
RAISED = (TypeError, ValueError, LookupError, AttributeError, RecursionError, ArithmeticError)


class TemplateRefusal(ValueError):
    """The chat template raised: it cannot render these messages (it has no system role, say)."""

    reason = "refused_by_template"  # why a row is rejected


class NoToolsError(TemplateRefusal):
    """There are definitions of tools, but the chat template shows none."""

    reason = "tools_not_in_template"


def render(
    tokenizer: Any,
    messages: Sequence[Message],
    thinking: bool | None,
    answer_follows: bool,
    tools: Sequence[Tool] = (),
) -> str:
    """The text of ``messages``, with the generation prompt where an ``answer_follows``. Raises ``TemplateRefusal``.

    ``tools`` are definitions in OpenAI's form. ``thinking`` goes to the switch that the template has; None leaves its
    default. Templates want the arguments of tool calls as an object or as JSON text, and no content or an empty one
    beside them: the first way that shows most calls is taken.
    """
    if tools and not reads_tools(tokenizer):
        raise NoToolsError("the chat template does not read tools")
    told = options(tokenizer, thinking) | ({"tools": list(tools)} if tools else {})
    if not any(message.get("tool_calls") for message in messages):
        return _apply(tokenizer, list(messages), answer_follows, told)
    texts: dict[str, int] = {}
    refusal: TemplateRefusal | None = None
    for way in _ways(messages):
        try:
            text = _apply(tokenizer, way, answer_follows, told)
        except TemplateRefusal as error:
            refusal = refusal or error
        else:
            texts.setdefault(text, _shown_calls(way, text))
    if refusal is not None and not texts:
        raise refusal
    return max(texts, key=lambda text: texts[text])


def variables(tokenizer: Any) -> frozenset[str]:
    """Names that the chat template reads and does not define: its switches, and what every template is given."""
    templates = tokenizer.chat_template or ""
    if isinstance(templates, dict):
        templates = "\n".join(templates.values())
    return _variables(templates)


def reads_tools(tokenizer: Any) -> bool:
    """Whether the template shows definitions of tools."""
    return "tools" in variables(tokenizer)


def switch(tokenizer: Any) -> str | None:
    """The name of the template's switch for thinking, or None where it has none."""
    names = variables(tokenizer)
    return next((name for name in SWITCHES if name in names), None)


def options(tokenizer: Any, thinking: bool | None) -> dict[str, Any]:
    """What the template is told, here and by a server: ``target.template_kwargs``, and ``thinking`` by its switch."""
    own = dict(getattr(tokenizer, "template_kwargs", None) or {})  # set by pipeline/target/files.py
    name = None if thinking is None else switch(tokenizer)
    if name is None:
        return own
    return {name: EFFORT[bool(thinking)] if name == "reasoning_effort" else thinking} | own


def check_options(tokenizer: Any, thinking: bool | None) -> None:
    """Raise ``ConfigError`` naming the key of ``options`` that would change nothing, or that is given twice."""
    own = getattr(tokenizer, "template_kwargs", {})
    names, key = variables(tokenizer) - GIVEN, switch(tokenizer)
    told = f"the variables of the target's chat template are {', '.join(sorted(names)) or 'none'}"
    if thinking is not None and key is None:
        raise ConfigError(
            f"target.thinking={thinking}: the chat template has no switch for it ({', '.join(SWITCHES)}), so that it "
            f"changes nothing; {told}: set target.thinking=null, or the template's own in target.template_kwargs"
        )
    if thinking is not None and key in own:
        raise ConfigError(
            f"target.thinking={thinking} and target.template_kwargs.{key}={own[key]}: both set {key}; leave one out"
        )
    for name in own:
        if name not in names:
            raise ConfigError(
                f"target.template_kwargs.{name}: it changes nothing; {told}: leave it out or name one"
            )


def digest(tokenizer: Any) -> str:
    """SHA-256 (hex) of the text of the chat template."""
    return hashlib.sha256(json.dumps(tokenizer.chat_template, sort_keys=True).encode()).hexdigest()


def control_tokens(tokenizer: Any) -> tuple[str, ...]:
    """The texts that become special tokens wherever they stand, also in what a user writes."""
    return _control_tokens(tokenizer, len(tokenizer))


@functools.lru_cache(
    maxsize=4
)  # Gemma has 6,415 added tokens: listing them takes longer than rendering a row
def _control_tokens(tokenizer: Any, size: int) -> tuple[str, ...]:
    added = tokenizer.added_tokens_decoder.values()
    return tuple(token.content for token in added if token.special and token.content.strip())


def end_of_turn(tokenizer: Any) -> str | None:
    """The token with which an answer ends, as the template writes it, or None where it cannot be told.

    Some templates (GLM's) write none: there the answer ends with the token that opens the next turn, and the target
    generates that one.
    """
    user, own = {"role": "user", "content": "a"}, options(tokenizer, None)
    talk = [user, {"role": "assistant", "content": PROBE}, user]
    try:
        after = _apply(tokenizer, talk, False, own).partition(PROBE)[2]
        last = _apply(tokenizer, talk[:2], False, own).partition(PROBE)[2]
    except TemplateRefusal:
        return None
    for text in (last, after):
        found = [
            (text.index(token), token)
            for token in tokenizer.get_added_vocab()
            if token.strip() and token in text
        ]
        if found:
            return str(min(found)[1])
    return None


def _apply(tokenizer: Any, messages: list[Message], answer_follows: bool, options: dict[str, Any]) -> str:
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        if all(message["content"] is not None for message in messages):
            return str(
                tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=answer_follows, **options
                )
            )
        # The method above leaves out what is None; DeepSeek's templates ask whether the content is.
        settings = (
            tokenizer.special_tokens_map
            | {"chat_template": tokenizer.get_chat_template(tools=options.get("tools"))}
            | options
        )
        rendered: Any = render_jinja_template([messages], add_generation_prompt=answer_follows, **settings)
    except (TemplateError, *RAISED) as error:
        raise TemplateRefusal(
            f"the chat template refused the messages: {type(error).__name__}: {error}"
        ) from error
    return str(rendered[0][0])


def _ways(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """``messages`` in the four forms in which templates want tool calls."""
    for absent in ("", None):
        for as_text in (False, True):
            yield [_called(message, absent, as_text) for message in messages]


def _called(message: Message, absent: str | None, as_text: bool) -> Message:
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = call["function"]["arguments"]
        text = json.dumps(arguments, ensure_ascii=False) if as_text else arguments
        calls.append(call | {"function": call["function"] | {"arguments": text}})
    return message | {"tool_calls": calls, "content": message["content"] or absent}


def _shown_calls(messages: Sequence[Message], text: str) -> int:
    """How many tool calls stand in ``text``, less those whose arguments are written as Python writes a dict."""
    called = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    objects = [
        call["arguments"] for call in called if isinstance(call["arguments"], dict) and call["arguments"]
    ]
    return sum(call["name"] in text for call in called) - sum(repr(one) in text for one in objects)


@functools.cache
def _variables(template: str) -> frozenset[str]:
    from jinja2 import Environment, TemplateSyntaxError, nodes

    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        tree = environment.parse(GENERATION.sub("", template))
    except TemplateSyntaxError:
        return frozenset()
    own = {macro.name for macro in tree.find_all(nodes.Macro)}
    return frozenset(_read(tree, own) - set(environment.globals))


def _read(node: nodes.Node, own: set[str]) -> set[str]:
    """Names that ``node`` may read from outside the template; what it sets whatever happens is added to ``own``.

    ``jinja2.meta.find_undeclared_variables`` also names what both branches of an ``if`` set.
    """
    from jinja2 import nodes

    if isinstance(node, nodes.Name):
        if node.ctx == "load":
            return {node.name} - own
        own.add(node.name)
        return set()
    if isinstance(node, nodes.If):
        return _read_if(node, own)
    if isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock, nodes.With)):
        own = own | {"loop", "caller", "varargs", "kwargs"}  # what is set inside ends there
    first = ("iter", "values", "node", "defaults")  # read before the names that they are given to are set
    children = [*node.iter_child_nodes(only=first), *node.iter_child_nodes(exclude=first)]
    return set().union(*(_read(child, own) for child in children))


def _read_if(node: nodes.If, own: set[str]) -> set[str]:
    """``_read`` of an ``if``: it sets what the bodies of all its branches set."""
    found: set[str] = set()
    branches = (node, *node.elif_)
    for branch in branches:
        found |= _read(branch.test, own)  # a test sets nothing
    ends = []
    for body in (*(branch.body for branch in branches), node.else_):
        ends.append(own.copy())
        found = found.union(*(_read(part, ends[-1]) for part in body))
    own |= set.intersection(*ends)
    return found
