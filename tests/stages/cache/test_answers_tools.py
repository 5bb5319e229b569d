"""Rows with definitions of tools, from the file to the prompt, the server and the artifact."""

import json
from pathlib import Path

import tiny
import tiny_templates as templates
from tiny_answers import Scripted, config
from tiny_server import Handler, ask, body_of, engine, serve

from data_specs.answers import read_answers
from pipeline.prompts.chat import render_prompt
from pipeline.store.artifacts import Store
from stages.cache import answers
from stages.cache.answers import run_answers
from stages.cache.answers_job import prepare
from stages.cache.source import AnswerReply, AnswerRequest

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
CALL = {"type": "function", "function": {"name": "look", "arguments": {"q": "x"}}}
USER = {"role": "user", "content": "q"}
TALK = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "12"},
    {"role": "assistant", "content": "b"},
]
HEAD = "[look]<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"


def folder_of(tmp_path: Path, target_folder: Path) -> Path:
    return templates.folder_with(templates.CALLS_OBJECT, tmp_path / "target", target_folder)


def test_given_answers_follow_the_tools(tmp_path: Path, target_folder: Path, store: Store):
    rows = [{"messages": TALK, "tools": json.dumps(TOOLS)}, {"prompt": "p", "response": "r"}]
    cfg = config(tmp_path, folder_of(tmp_path, target_folder), rows, answers={"source": "given"})
    table = read_answers(run_answers(cfg, store).path)
    prompts, said = (
        [tiny.tokenizer().decode(ids) for ids in table[name].to_pylist()]
        for name in ("prompt_ids", "answer_ids")
    )
    called = HEAD + 'look({"q": "x"})<|im_end|>\n<|im_start|>tool\n12<|im_end|>\n<|im_start|>assistant\n'
    assert prompts == [HEAD, called, "<|im_start|>user\np<|im_end|>\n<|im_start|>assistant\n"]
    assert said == ['look({"q": "x"})<|im_end|>', "b<|im_end|>", "r<|im_end|>"]
    tools = [None if text is None else json.loads(text) for text in table["tools"].to_pylist()]
    assert tools == [TOOLS, TOOLS, None]


def test_a_template_without_tools_rejects_such_rows(tmp_path: Path, target_folder: Path, store: Store):
    rows = [{"prompt": "a", "tools": TOOLS}, {"prompt": "b"}, {"prompt": "c", "tools": 3}]
    counts = run_answers(config(tmp_path, target_folder, rows), store).manifest.counts
    assert counts["rejected"] == {"bad_tools": 1, "tools_not_in_template": 1} and counts["rows"] == 1


def test_the_same_question_with_other_tools_is_another_prompt(tmp_path: Path, target_folder: Path):
    rows = [{"prompt": "a", "tools": TOOLS}, {"prompt": "a"}, {"prompt": "a", "tools": TOOLS}]
    job = prepare(config(tmp_path, folder_of(tmp_path, target_folder), rows))
    assert [prompt.tools for prompt in job.prompts.rows] == [TOOLS, []]
    assert job.prompts.rejected == {"duplicate_prompt": 1}


class Caller(Scripted):
    """Calls a tool when it is asked to look."""

    def _reply(self, request: AnswerRequest) -> AnswerReply:
        assert request.tools == TOOLS
        reply = super()._reply(request)
        if request.messages[-1]["content"] == "look":
            reply.message["tool_calls"] = [CALL]
        return reply


def test_a_call_ends_the_conversation_because_nobody_has_its_result(tmp_path: Path, target_folder: Path):
    rows = [{"turns": ["look", "and"], "tools": TOOLS}, {"turns": ["say", "look"], "tools": TOOLS}]
    job = prepare(config(tmp_path, folder_of(tmp_path, target_folder), rows))
    made, counts = answers.answer_unit(job, Caller(), "00000", lambda prompts, tokens: None)
    assert [row.turn for row in made] == [0, 0, 1]
    assert counts == {"later_turn/tool_call_without_result": 1}
    assert tiny.tokenizer().decode(made[0].prompt_ids).startswith("[look]<|im_start|>user\nlook")


def request_of(tokenizer) -> AnswerRequest:
    return AnswerRequest([USER], render_prompt(tokenizer, [USER], None, TOOLS), 9, TOOLS)


def test_a_server_gets_the_tools_and_its_calls_become_text():
    tokenizer = templates.tokenizer(templates.CALLS_OBJECT)
    function = {"name": "look", "arguments": '{"q": "x"}'}

    def calls(handler: Handler, payload: dict) -> None:
        told = [{"id": "c1", "type": "function", "function": function}]
        handler.send(200, body_of(payload, None, reason="tool_calls", tool_calls=told))

    with serve(calls) as server:
        (reply,) = ask(engine(server, tokenizer=tokenizer), request_of(tokenizer))
    assert server.payloads[0]["tools"] == TOOLS
    assert tokenizer.decode(reply.prompt_ids) == HEAD
    assert tokenizer.decode(reply.answer_ids) == 'look({"q": "x"})<|im_end|>'
    assert reply.message["tool_calls"] == [CALL | {"id": "c1"}] and reply.finish_reason == "tool_calls"


def test_a_request_without_tools_names_none():
    with serve() as server:
        ask(engine(server))
    assert "tools" not in server.payloads[0]
