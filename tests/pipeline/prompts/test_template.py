from typing import Any

import pytest
import tiny
import tiny_templates as templates
from tiny_errors import refused

from pipeline.config import ConfigError
from pipeline.prompts.template import (
    NoToolsError,
    TemplateRefusal,
    check_options,
    control_tokens,
    end_of_turn,
    options,
    render,
    switch,
    variables,
)

USER = {"role": "user", "content": "q"}
CALL = {"type": "function", "function": {"name": "look", "arguments": {"q": "x"}}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
HEAD = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        (templates.CALLS_OBJECT, 'look({"q": "x"})'),
        (templates.CALLS_TEXT, 'look {"q": "x"}'),
        (templates.CALLS_WITHOUT_CONTENT, 'look {"q": "x"}'),
    ],
)
def test_arguments_come_as_the_template_wants_them(template: str, shown: str) -> None:
    assert render(templates.tokenizer(template), [USER, CALLED], None, False) == HEAD + shown + "<|im_end|>\n"


def test_arguments_are_never_written_as_python_writes_a_dict() -> None:
    text = render(templates.tokenizer(templates.CALLS_PRINTED), [USER, CALLED], None, False)
    assert text == HEAD + '{"q": "x"}<|im_end|>\n'


def test_calls_in_the_history_are_shown_too() -> None:
    talk = [USER, CALLED, {"role": "tool", "content": "12"}, {"role": "assistant", "content": "a"}]
    text = render(templates.tokenizer(templates.CALLS_WITHOUT_CONTENT), talk, None, False)
    assert (
        text
        == HEAD
        + 'look {"q": "x"}<|im_end|>\n<|im_start|>tool\n12<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n'
    )


def test_tools_reach_the_template() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    text = render(templates.tokenizer(templates.CALLS_OBJECT), [USER], None, True, tools)
    assert text == "[look]" + HEAD


def test_tools_are_refused_where_the_template_shows_none() -> None:
    with pytest.raises(NoToolsError) as refusal:
        render(tiny.tokenizer(), [USER], None, True, [{"type": "function", "function": {"name": "look"}}])
    assert refusal.value.reason == "tools_not_in_template"


@pytest.mark.parametrize(
    ("name", "true", "false"),
    [
        ("enable_thinking", "True", "False"),
        ("thinking", "True", "False"),
        ("reasoning_effort", "high", "low"),
    ],
)
def test_thinking_goes_to_the_switch_that_the_template_has(name: str, true: str, false: str) -> None:
    made = templates.tokenizer("{{ " + name + " | default('unset') }}")
    assert switch(made) == name
    assert [render(made, [USER], thinking, True) for thinking in (None, True, False)] == [
        "unset",
        true,
        false,
    ]


def test_a_template_without_a_switch_has_none() -> None:
    assert switch(tiny.tokenizer()) is None
    made = templates.tokenizer("{% generation %}{{ messages[0].thinking }}{% endgeneration %}{{ style }}")
    assert switch(made) is None and "style" in variables(made)


@pytest.mark.parametrize(
    ("template", "names"),
    [
        (templates.NAMES_ROLES, {"messages", "add_generation_prompt"}),
        (templates.RENAMES_TOOLS, {"custom_tools", "tools"}),
        ("{% if a %}{% set x = 1 %}{% elif b %}{% set x = 2 %}{% else %}{% set x = 3 %}{% endif %}{{ x }}", {"a", "b"}),
        ("{% if a %}{% set x = 1 %}{% elif b %}{% set x = 2 %}{% endif %}{{ x }}", {"a", "b", "x"}),
        ("{% set style = style | default('plain') %}{{ style }}", {"style"}),
        ("{% set style = 'plain' %}{{ style }}", set()),
        ("{% for k, v in d.items() %}{{ loop.index ~ k ~ v }}{% endfor %}{{ v }}", {"d", "v"}),
        ("{% macro f(a, b=c) %}{{ a ~ b ~ e ~ caller() }}{% endmacro %}{{ f(range(3)) }}", {"c", "e"}),
        ("{% with a = b %}{{ a }}{% endwith %}{% set x %}{{ y }}{% endset %}{{ x }}", {"b", "y"}),
    ],
)  # fmt: skip
def test_a_variable_is_what_the_template_reads_and_does_not_set(template: str, names: set[str]) -> None:
    assert variables(templates.tokenizer(template)) == names


def test_a_variable_of_the_templates_own_cannot_be_set() -> None:
    made = templates.tokenizer(templates.NAMES_ROLES)
    made.template_kwargs = {"role": "x"}
    with refused(ConfigError, "target.template_kwargs.role"):
        check_options(made, None)


def test_the_users_own_settings_reach_the_template() -> None:
    made = templates.tokenizer("{{ style | default('plain') }}")
    made.template_kwargs = {"style": "terse"}
    assert render(made, [USER], None, True) == "terse"


@pytest.mark.parametrize(
    ("template", "thinking", "own", "told"),
    [
        (templates.SWITCHED, None, {}, {}),
        (templates.SWITCHED, False, {"style": "t"}, {"enable_thinking": False, "style": "t"}),
        ("{{ reasoning_effort }}", True, {}, {"reasoning_effort": "high"}),
        ("{{ reasoning_effort }}", None, {"reasoning_effort": "medium"}, {"reasoning_effort": "medium"}),
    ],
)
def test_what_a_template_is_told(
    template: str, thinking: bool | None, own: dict[str, Any], told: dict[str, Any]
) -> None:
    made = templates.tokenizer(template)
    made.template_kwargs = own
    check_options(made, thinking)
    assert options(made, thinking) == told


@pytest.mark.parametrize(
    ("template", "thinking", "own", "named"),
    [
        (tiny.TEMPLATE, False, {}, ["target.thinking=False", "target.thinking=null"]),
        ("{{ style }}", True, {}, ["target.thinking=True", "style"]),
        (templates.SWITCHED, None, {"stile": 1}, ["target.template_kwargs.stile", "enable_thinking", "style"]),
        ("{{ messages }}", None, {"messages": []}, ["target.template_kwargs.messages"]),
        (templates.SWITCHED, False, {"enable_thinking": True},
         ["target.thinking=False", "target.template_kwargs.enable_thinking=True"]),
    ],
)  # fmt: skip
def test_a_setting_that_changes_nothing_is_an_error(
    template: str, thinking: bool | None, own: dict[str, Any], named: list[str]
) -> None:
    made = templates.tokenizer(template)
    made.template_kwargs = own
    with refused(ConfigError, *named):
        check_options(made, thinking)


@pytest.mark.parametrize(
    ("template", "tokens", "end"),
    [
        (tiny.TEMPLATE, (), "<|im_end|>"),
        (templates.NO_GENERATION_PROMPT, (), "<|im_end|>"),
        (templates.GLM, ("<|user|>", "<|assistant|>"), "<|user|>"),
        (templates.GEMMA4, ("<|turn>", "<turn|>"), "<turn|>"),
        (templates.NO_END, (), None),
        ("{{ raise_exception('no') }}", (), None),
    ],
)
def test_the_end_of_a_turn_is_the_templates(template: str, tokens: tuple[str, ...], end: str | None) -> None:
    assert end_of_turn(templates.tokenizer(template, *tokens)) == end


def test_control_tokens_are_the_special_ones() -> None:
    made = templates.tokenizer(tiny.TEMPLATE, "[INST]")
    made.add_tokens(["<think>", "<h1>"])
    assert control_tokens(made) == ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unused|>", "[INST]")


@pytest.mark.parametrize(
    "template", ["{{ messages[0].content + 3 }}", "{{ messages[7].role }}", "{{ 1 // 0 }}"]
)
def test_whatever_a_template_raises_is_a_refusal(template: str) -> None:
    with pytest.raises(TemplateRefusal):
        render(templates.tokenizer(template), [USER], None, True)
