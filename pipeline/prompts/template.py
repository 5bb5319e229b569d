"""Renders a target's chat template with messages, tools and switches, and finds the token that ends a turn."""

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

SWITCHES = ("enable_thinking", "thinking", "reasoning_effort")  # the names that templates give to this switch
EFFORT = {True: "high", False: "low"}  # values of ``reasoning_effort``, which cannot be off
# Every template is given these or may call them. A setting with such a name would break it.
GIVEN = frozenset({"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"})
PROBE = "\N{SNOWMAN}"  # stands for an answer, because no template writes it
GENERATION = re.compile(r"{%-?\s*(?:end)?generation\s*-?%}")  # transformers marks answers with this extension
# A template is other people's code that runs on other people's data, so it can raise any of these.
RAISED = (TypeError, ValueError, LookupError, AttributeError, RecursionError, ArithmeticError)


class TemplateRefusal(ValueError):
    """The chat template cannot render these messages, for example because it has no system role."""

    reason = "refused_by_template"  # why a row is rejected


class NoToolsError(TemplateRefusal):
    """There are definitions of tools, but the chat template does not show them."""

    reason = "tools_not_in_template"


def render(
    tokenizer: Any,
    messages: Sequence[Message],
    thinking: bool | None,
    answer_follows: bool,
    tools: Sequence[Tool] = (),
) -> str:
    """The text of ``messages``, with the generation prompt if ``answer_follows``. Raises ``TemplateRefusal``.

    ``tools`` are definitions in OpenAI's form. ``thinking`` sets the template's switch; None leaves its default.
    Templates want the arguments of tool calls either as an object or as JSON text, and beside them either no content or
    an empty one. All four forms are tried, and the first of those that show the most calls is taken.
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
    """The names that the chat template reads and does not define: its switches, and what every template is given."""
    templates = tokenizer.chat_template or ""
    if isinstance(templates, dict):
        templates = "\n".join(templates.values())
    return _variables(templates)


def reads_tools(tokenizer: Any) -> bool:
    """Whether the chat template shows definitions of tools."""
    return "tools" in variables(tokenizer)


def switch(tokenizer: Any) -> str | None:
    """The name of the template's switch for thinking, or None if it has none."""
    names = variables(tokenizer)
    return next((name for name in SWITCHES if name in names), None)


def options(tokenizer: Any, thinking: bool | None) -> dict[str, Any]:
    """The variables that the template gets, here and on a server: ``target.template_kwargs`` and the switch's value."""
    own = dict(getattr(tokenizer, "template_kwargs", None) or {})  # set by pipeline/target/files.py
    name = None if thinking is None else switch(tokenizer)
    if name is None:
        return own
    return {name: EFFORT[bool(thinking)] if name == "reasoning_effort" else thinking} | own


def check_options(tokenizer: Any, thinking: bool | None) -> None:
    """Raise ``ConfigError`` that names a key of ``options`` that would have no effect, or that is set twice."""
    own = getattr(tokenizer, "template_kwargs", {})
    names, key = variables(tokenizer) - GIVEN, switch(tokenizer)
    told = f"the variables of the target's chat template are {', '.join(sorted(names)) or 'none'}"
    if thinking is not None and key is None:
        raise ConfigError(
            f"target.thinking={thinking}: this has no effect, because the chat template has no switch for it "
            f"({', '.join(SWITCHES)}); {told}: set target.thinking=null, or the template's own variable in "
            "target.template_kwargs"
        )
    if thinking is not None and key in own:
        raise ConfigError(
            f"target.thinking={thinking} and target.template_kwargs.{key}={own[key]}: both set {key}; leave one out"
        )
    for name in own:
        if name not in names:
            raise ConfigError(
                f"target.template_kwargs.{name}: this has no effect; {told}: remove it or name one"
            )


def digest(tokenizer: Any) -> str:
    """SHA-256 (hex) of the text of the chat template."""
    return hashlib.sha256(json.dumps(tokenizer.chat_template, sort_keys=True).encode()).hexdigest()


def control_tokens(tokenizer: Any) -> tuple[str, ...]:
    """The texts that become special tokens wherever they stand, even in a user's message."""
    return _control_tokens(tokenizer, len(tokenizer))


# Gemma has 6,415 added tokens. Listing them takes longer than rendering a row.
@functools.lru_cache(maxsize=4)
def _control_tokens(tokenizer: Any, size: int) -> tuple[str, ...]:
    added = tokenizer.added_tokens_decoder.values()
    return tuple(token.content for token in added if token.special and token.content.strip())


def end_of_turn(tokenizer: Any) -> str | None:
    """The token that ends an answer, as the template writes it, or None if the template does not show it.

    Some templates (GLM's) write none after the last answer. There the answer ends with the token that opens the next
    turn, which the target generates.
    """
    user, own = {"role": "user", "content": "a"}, options(tokenizer, None)
    talk = [user, {"role": "assistant", "content": PROBE}, user]
    try:
        after = _apply(tokenizer, talk, False, own).partition(PROBE)[2]
        last = _apply(tokenizer, talk[:2], False, own).partition(PROBE)[2]
    except TemplateRefusal:
        return None
    added = [str(token) for token in tokenizer.get_added_vocab() if token.strip()]
    for text in (last, after):
        if found := [(text.index(token), token) for token in added if token in text]:
            return min(found)[1]
    return None


def _apply(tokenizer: Any, messages: list[Message], answer_follows: bool, options: dict[str, Any]) -> str:
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        if all(message["content"] is not None for message in messages):
            options = options | {"tokenize": False}
            return str(
                tokenizer.apply_chat_template(messages, add_generation_prompt=answer_follows, **options)
            )
        # The method above drops fields that are None, but DeepSeek's templates ask whether the content is None.
        template = tokenizer.get_chat_template(tools=options.get("tools"))
        settings = tokenizer.special_tokens_map | {"chat_template": template} | options
        rendered: Any = render_jinja_template([messages], add_generation_prompt=answer_follows, **settings)
    except (TemplateError, *RAISED) as error:
        said = f"{type(error).__name__}: {error}"
        raise TemplateRefusal(f"the chat template refused the messages: {said}") from error
    return str(rendered[0][0])


def _ways(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """``messages`` in the four forms in which templates may want tool calls."""
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
    """The number of tool calls in ``text``, minus those whose arguments are written as a Python dict."""
    called = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    objects = [call["arguments"] for call in called if isinstance(call["arguments"], dict)]
    return sum(call["name"] in text for call in called) - sum(repr(one) in text for one in objects if one)


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
    """The names that ``node`` may read from outside the template. Names that it always sets are added to ``own``.

    ``jinja2.meta.find_undeclared_variables`` would wrongly include names that both branches of an ``if`` set.
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
        own = own | {"loop", "caller", "varargs", "kwargs"}  # a copy, because names set inside end there
    first = (
        "iter",
        "values",
        "node",
        "defaults",
    )  # these are read before the names that receive them are set
    children = [*node.iter_child_nodes(only=first), *node.iter_child_nodes(exclude=first)]
    return set().union(*(_read(child, own) for child in children))


def _read_if(node: nodes.If, own: set[str]) -> set[str]:
    """``_read`` for an ``if``, which always sets only the names that all its branches set."""
    branches = (node, *node.elif_)
    found = set().union(*(_read(branch.test, own) for branch in branches))  # a test sets nothing
    ends = []
    for body in (*(branch.body for branch in branches), node.else_):
        ends.append(own.copy())
        found = found.union(*(_read(part, ends[-1]) for part in body))
    own |= set.intersection(*ends)
    return found
