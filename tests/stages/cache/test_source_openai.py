"""What is sent to a server, and what is made of its replies."""

import pytest
import tiny
import tiny_templates
from tiny_server import Handler, ask, body_of, engine, request, serve, status

from pipeline.prompts.rows import Rejection
from stages.cache.source import Settings

# --- what is sent


def test_every_setting_goes_under_its_own_name():
    """Pitfall 14."""
    settings = Settings(50, 0.7, 0.9, 20, 0.05, 1.1, 0.2, 0.3)
    tokenizer = tiny_templates.tokenizer("{{ reasoning_effort }}{{ style }}")
    tokenizer.template_kwargs = {"style": "terse"}
    with serve() as server:
        ask(engine(server, settings=settings, thinking=False, tokenizer=tokenizer))
    assert server.payloads == [
        {
            "model": "tiny", "messages": [{"role": "user", "content": "q"}], "max_tokens": 50, "seed": 7,
            "temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1,
            "presence_penalty": 0.2, "frequency_penalty": 0.3,
            "chat_template_kwargs": {"reasoning_effort": "low", "style": "terse"}, "return_token_ids": True,
        }
    ]  # fmt: skip


OFF = {
    "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}  # fmt: skip


def test_what_is_off_is_sent_as_off():
    """vLLM takes the model's defaults for what a request does not name, while the manifest says none."""
    with serve() as server:
        ask(engine(server, settings=Settings(50, 0.0)), request(limit=3))
    assert server.payloads[0] == OFF | {
        "model": "tiny", "messages": [{"role": "user", "content": "q"}], "max_tokens": 3, "seed": 7,
        "temperature": 0.0, "return_token_ids": True,
    }  # fmt: skip


def test_a_strict_server_is_asked_again_without_what_it_does_not_know():
    def strict(handler: Handler, payload: dict) -> None:
        unknown = next((name for name in ("return_token_ids", "top_k") if name in payload), None)
        if unknown:
            return status(400, f"Unrecognized request argument supplied: {unknown}")(handler, payload)
        return handler.send(200, body_of(payload, "yes"))

    with serve(*[strict] * 9) as server:
        made = engine(server, concurrency=1)
        replies = ask(made, request("a"), request("b"))
    assert [reply.retokenized for reply in replies] == [True, True]
    assert [sorted({"return_token_ids", "top_k"} & set(payload)) for payload in server.payloads] == [
        ["return_token_ids", "top_k"], ["top_k"], [], [],
    ]  # fmt: skip


def test_a_setting_that_acts_is_never_left_out():
    with serve(status(400, "unknown argument: top_k")) as server:
        (reply,) = ask(engine(server, settings=Settings(16, 1.0, top_k=5)))
    assert isinstance(reply, Rejection) and "top_k" in reply.detail and len(server.payloads) == 1


# --- what comes back


def test_the_servers_own_ids_are_used():
    """Pitfall 7."""
    with serve(max_model_len=99) as server:
        made = engine(server)
        replies = ask(made, request("a"), request("b"))
    assert made.context == 99
    assert [reply.answer_ids for reply in replies] == [[9, 9, 7, 258], [9, 9, 8, 258]]
    assert [reply.message for reply in replies] == [{"role": "assistant", "content": f"re {x}"} for x in "ab"]
    assert {(tuple(reply.prompt_ids), reply.finish_reason, reply.retokenized) for reply in replies} == {
        ((257, 1), "stop", False)
    }


@pytest.mark.parametrize(("reason", "end"), [("stop", [258]), ("length", [])])
def test_text_alone_is_tokenized_and_marked(reason: str, end: list[int]):
    """The end of turn is there exactly when the target ended."""
    tokenizer = tiny.tokenizer()
    with serve(lambda h, p: h.send(200, body_of(p, "yes", reason=reason))) as server:
        (reply,) = ask(engine(server))
    assert reply.prompt_ids == request().prompt_ids
    assert reply.answer_ids == tokenizer("yes")["input_ids"] + end
    assert (reply.finish_reason, reply.retokenized) == (reason, True)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept(name: str):
    """Pitfall 5."""
    with serve(lambda h, p: h.send(200, body_of(p, "yes", [1, 258], **{name: "hm"}))) as server:
        (reply,) = ask(engine(server))
    assert reply.message == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}


def test_text_whose_reasoning_the_template_drops_is_rejected():
    with serve(lambda h, p: h.send(200, body_of(p, "yes", reasoning_content="hm"))) as server:
        assert ask(engine(server)) == [Rejection("reasoning_not_rendered")]


def test_no_tokens_at_all_is_a_named_rejection():
    with serve(lambda h, p: h.send(200, body_of(p, "", []))) as server:
        assert ask(engine(server)) == [Rejection("empty_answer")]
