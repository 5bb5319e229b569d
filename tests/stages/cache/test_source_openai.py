"""A scripted server on 127.0.0.1: each request takes the next behaviour of the list, then all succeed."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import tiny

from pipeline.config import ConfigError, OpenAIConfig
from pipeline.prompts.chat import render_prompt
from pipeline.prompts.rows import Rejection
from stages.cache.source import AnswerReply, AnswerRequest, Settings
from stages.cache.source_openai import OpenAIEngine, ServerError

Behaviour = Callable[["Handler", dict], None]
EOS = (258, 256)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script: list[Behaviour], **model) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.payloads, self.headers, self.model = list(script), [], [], {"id": "tiny"} | model
        self.lock, self.running, self.most = threading.Lock(), 0, 0
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:  # noqa: N802
        assert self.path == "/v1/models"
        self.server.headers.append(dict(self.headers))
        self.send(200, {"data": [self.server.model]})

    def do_POST(self) -> None:  # noqa: N802
        assert self.path == "/v1/chat/completions"
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.payloads.append(payload)
            behave = self.server.script.pop(0) if self.server.script else echo
            self.server.running += 1
            self.server.most = max(self.server.most, self.server.running)
        behave(self, payload)
        with self.server.lock:
            self.server.running -= 1

    def send(self, status: int, body: object, promised: int | None = None) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(promised or len(content)))
        self.end_headers()
        self.wfile.write(content)


def body_of(
    payload: dict, text: str = "yes", ids: list[int] | None = None, reason: str = "stop", **message
) -> dict:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text} | message,
        "finish_reason": reason,
    }
    if ids is not None:
        choice["token_ids"] = ids
    return {
        "choices": [choice],
        "prompt_token_ids": [257, len(payload["messages"])] if ids is not None else None,
    }


def echo(handler: Handler, payload: dict) -> None:
    """Answers with ids that no tokenizer would make of the text: they must come through."""
    handler.send(
        200, body_of(payload, f"re {payload['messages'][-1]['content']}", [9, 9, payload["seed"] % 100, 258])
    )


def status(code: int, text: str = "not now") -> Behaviour:
    return lambda handler, _: handler.send(code, {"error": {"message": text}})


def raw(content: bytes) -> Behaviour:
    return lambda handler, _: handler.send(200, content)


def half(handler: Handler, payload: dict) -> None:
    content = json.dumps(body_of(payload, ids=[1])).encode()
    handler.send(200, content[: len(content) // 2], promised=len(content))
    handler.close_connection = True


def silent(handler: Handler, _: dict) -> None:
    time.sleep(0.8)
    handler.close_connection = True


def hang_up(handler: Handler, _: dict) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


@contextmanager
def serve(*script: Behaviour, **model) -> Iterator[Server]:
    server = Server(list(script), **model)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def engine(
    *servers: Server, settings: Settings | None = None, thinking: bool | None = None, **fields
) -> OpenAIEngine:
    values = {"base_urls": [s.url for s in servers], "backoff": 0.01, "timeout": 0.4, "retries": 6} | fields
    return OpenAIEngine(
        OpenAIConfig(**values), settings or Settings(16, 0.0), tiny.tokenizer(), thinking, EOS
    )


def request(text: str = "q", limit: int = 100) -> AnswerRequest:
    messages = [{"role": "user", "content": text}]
    return AnswerRequest(messages, render_prompt(tiny.tokenizer(), messages, None), limit)


def ask(engine: OpenAIEngine, *requests: AnswerRequest, seed: int = 7) -> list[AnswerReply | Rejection]:
    return engine.answer(requests or [request()], seed, lambda tokens: None)


# --- what is sent


def test_every_setting_goes_under_its_own_name():
    """Pitfall 14."""
    settings = Settings(50, 0.7, 0.9, 20, 0.05, 1.1, 0.2, 0.3)
    with serve() as server:
        ask(engine(server, settings=settings, thinking=False))
    assert server.payloads == [
        {
            "model": "tiny", "messages": [{"role": "user", "content": "q"}], "max_tokens": 50, "seed": 7,
            "temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1,
            "presence_penalty": 0.2, "frequency_penalty": 0.3,
            "chat_template_kwargs": {"enable_thinking": False}, "return_token_ids": True,
        }
    ]  # fmt: skip


def test_what_is_off_is_not_sent():
    with serve() as server:
        ask(engine(server, settings=Settings(50, 0.0)), request(limit=3))
    assert server.payloads[0] == {
        "model": "tiny", "messages": [{"role": "user", "content": "q"}], "max_tokens": 3, "seed": 7,
        "temperature": 0.0, "return_token_ids": True,
    }  # fmt: skip


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


# --- what goes wrong


def test_every_kind_of_failure_is_outlived():
    """429, 500, garbage, JSON without the fields, half a body, silence, a closed connection; then success."""
    bad_ids = raw(
        json.dumps(
            {"choices": [{"message": {"content": ""}, "finish_reason": "", "token_ids": ["x"]}]}
        ).encode()
    )
    script = [
        status(429), status(500), raw(b"<html>"), raw(b"[]"), raw(b"{}"), bad_ids, half, silent, hang_up,
    ]  # fmt: skip
    with serve(*script) as server:
        (reply,) = ask(engine(server, retries=9))
    assert reply.answer_ids == [9, 9, 7, 258]
    assert len(server.payloads) == 10 and all(payload == server.payloads[0] for payload in server.payloads)


def test_retries_end_and_the_last_failure_is_shown():
    with serve(*[status(503, "loading")] * 9) as server, pytest.raises(ServerError) as error:
        ask(engine(server, retries=2))
    assert len(server.payloads) == 3
    assert server.url in str(error.value) and "503" in str(error.value) and "loading" in str(error.value)
    assert "after 3 attempts" in str(error.value)


def test_pauses_double(monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    with serve(*[status(500)] * 9) as server:
        made = engine(server, retries=8, backoff=0.5)
        monkeypatch.setattr("asyncio.sleep", sleep)
        with pytest.raises(ServerError):
            ask(made)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]


def test_a_refusal_is_shown_at_once_without_the_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_KEY", "secret-123")
    with serve(status(401, "bad key secret-123")) as server, pytest.raises(ServerError) as error:
        ask(engine(server, api_key_env="MY_KEY"))
    assert server.headers[0]["Authorization"] == "Bearer secret-123"
    assert len(server.payloads) == 1
    assert (
        "status 401" in str(error.value)
        and "bad key ***" in str(error.value)
        and server.url in str(error.value)
    )
    assert "secret-123" not in str(error.value)


def test_a_failing_server_hands_over_to_the_next():
    with serve(*[status(500)] * 50) as bad, serve() as good:
        replies = ask(engine(bad, good), *[request(str(n)) for n in range(6)])
    assert all(isinstance(reply, AnswerReply) for reply in replies)
    assert len(bad.payloads) == 3 and len(good.payloads) == 6


def test_requests_run_together_up_to_the_concurrency():
    def slow(handler: Handler, payload: dict) -> None:
        time.sleep(0.05)
        echo(handler, payload)

    with serve(*[slow] * 12) as server:
        replies = ask(engine(server, concurrency=4, timeout=5.0), *[request(str(n)) for n in range(12)])
    assert [reply.message["content"] for reply in replies] == [f"re {n}" for n in range(12)]
    assert 2 <= server.most <= 4


def test_no_server_there_is_named():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/v1"
        with pytest.raises(ServerError, match=f"{url}.*after 2 attempts"):
            OpenAIEngine(
                OpenAIConfig(base_urls=[url], retries=1, backoff=0.01),
                Settings(1, 0.0),
                tiny.tokenizer(),
                None,
                EOS,
            )


def test_the_model_must_be_served():
    with serve() as server, pytest.raises(ServerError, match="expected to serve other, got \\['tiny'\\]"):
        engine(server, model="other")
    with serve() as one, serve(id="big") as two, pytest.raises(ServerError, match="\\['big', 'tiny'\\]"):
        engine(one, two)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"base_urls": []}, "base_urls: expected at least one"),
        ({"base_urls": ["host:8000"]}, "base_urls: expected http"),
        ({"base_urls": ["http://me:pass@host/v1"]}, "base_urls: no user or password"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"retries": -1}, "retries=-1"),
        ({"api_key_env": "NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE is not set"),
    ],
)
def test_a_config_that_cannot_work_is_named(fields: dict, message: str):
    config = OpenAIConfig(**({"base_urls": ["http://127.0.0.1:1/v1"]} | fields))
    with pytest.raises(ConfigError, match=message) as error:
        OpenAIEngine(config, Settings(1, 0.0), tiny.tokenizer(), None, EOS)
    assert "pass@" not in str(error.value)


@pytest.mark.parametrize("code", [400, 413, 422])
def test_a_prompt_that_the_server_refuses_is_a_rejection(code: int):
    with serve(status(code, "too long")) as server:
        replies = ask(engine(server, concurrency=1), request("a"), request("b"))
    assert isinstance(replies[0], Rejection) and replies[0].reason == "refused_by_server"
    assert f"status {code}" in replies[0].detail and "too long" in replies[0].detail
    assert isinstance(replies[1], AnswerReply) and len(server.payloads) == 2


@pytest.mark.parametrize("code", [401, 403, 404])
def test_what_the_server_refuses_to_all_is_an_error(code: int):
    with serve(status(code)) as server, pytest.raises(ServerError, match=f"status {code}"):
        ask(engine(server))
