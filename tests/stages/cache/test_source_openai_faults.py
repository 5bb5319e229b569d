"""What goes wrong at a server, and what is said of it."""

import json
import socket
import time

import pytest
import tiny
from tiny_errors import refused
from tiny_server import (
    EOS,
    Handler,
    ask,
    body_of,
    echo,
    engine,
    half,
    hang_up,
    raw,
    request,
    serve,
    silent,
    status,
)

from pipeline.config import ConfigError, OpenAIConfig
from pipeline.prompts.rows import Rejection
from stages.cache.source import AnswerReply, Refusal, Settings
from stages.cache.source_openai import Gate, OpenAISource, ServerError

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
    with serve(*[status(503, "loading")] * 9) as server, refused(ServerError, server.url, 503, "loading", 3):
        ask(engine(server, retries=2))
    assert len(server.payloads) == 3


def test_pauses_double(monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    with serve(*[status(500)] * 9) as server:
        made = engine(server, retries=8, backoff=0.5)
        monkeypatch.setattr("asyncio.sleep", sleep)
        with pytest.raises(ServerError):
            ask(made)
    longest = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, longest, strict=True))


def test_a_busy_server_is_given_the_time_that_it_asks_for(monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    def busy(handler: Handler, _: dict) -> None:
        handler.send(429, {"error": "slow down"}, **{"Retry-After": "7"})

    with serve(busy) as server:
        made = engine(server, backoff=0.01)
        monkeypatch.setattr("asyncio.sleep", sleep)
        ask(made)
    assert pauses == [7.0]


def test_fewer_requests_at_a_time_after_too_many():
    gate = Gate(8)
    gate.narrow()
    gate.narrow()
    assert gate.limit == 2
    for _ in range(3):
        gate.widen()
    assert 3 < gate.limit < 3.5
    for _ in range(100):
        gate.widen()
    assert gate.limit == 8


def test_a_request_that_keeps_failing_loses_itself_alone():
    def poisoned(handler: Handler, payload: dict) -> None:
        if payload["messages"][0]["content"] == "bad":
            return status(500, "boom")(handler, payload)
        return echo(handler, payload)

    with serve(*[poisoned] * 20) as server:
        replies = ask(engine(server, retries=2), request("a"), request("bad"), request("b"))
    assert [isinstance(reply, AnswerReply) for reply in replies] == [True, False, True]
    assert replies[1] == Refusal("server_failed") and "boom" in replies[1].detail


def test_the_time_out_is_for_the_whole_answer():
    """A byte now and then keeps a connection alive for ever."""

    def trickle(handler: Handler, _: dict) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        for _ in range(20):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.1)
        handler.close_connection = True

    with serve(trickle) as server, refused(ServerError, server.url, "0.3 s"):
        ask(engine(server, retries=0, timeout=0.3))


def test_a_body_has_a_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.http_client.LONGEST_BODY", 1 << 20)
    with serve(raw(b" " * (3 << 20))) as server, refused(ServerError, server.url, "1 MiB"):
        ask(engine(server, retries=0))


def test_ids_beyond_the_vocabulary_name_the_server():
    with serve(lambda h, p: h.send(200, body_of(p, "yes", [9999]))) as server:
        made = engine(server)
        made.vocab_size = 272
        with refused(ServerError, server.url, 9999, 272):
            ask(made)


def test_every_failure_has_a_reason():
    """httpx has errors without a text."""
    with serve(hang_up) as server, pytest.raises(ServerError) as error:
        ask(engine(server, retries=0))
    assert f"{server.url}: " in str(error.value) and ":  " not in str(error.value)


@pytest.mark.parametrize("reason", [None, 3])
def test_a_finish_reason_is_text(reason: object):
    body = {"choices": [{"message": {"content": "a"}, "finish_reason": reason, "token_ids": [1]}]}
    with serve(raw(json.dumps(body).encode())) as server, refused(ServerError, server.url, "finish_reason"):
        ask(engine(server, retries=0))


def test_a_refusal_is_shown_at_once_without_the_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_KEY", "secret-123")
    with (
        serve(status(401, "bad key secret-123")) as server,
        refused(ServerError, server.url, 401, "bad key ***") as error,
    ):
        ask(engine(server, api_key_env="MY_KEY"))
    assert server.headers[0]["Authorization"] == "Bearer secret-123"
    assert len(server.payloads) == 1
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
        with refused(ServerError, url, 2):
            OpenAISource(
                OpenAIConfig(base_urls=[url], retries=1, backoff=0.01),
                Settings(1, 0.0),
                tiny.tokenizer(),
                None,
                EOS,
            )


def test_the_model_must_be_served():
    with serve() as server, refused(ServerError, server.url, "other", ["tiny"]):
        engine(server, model="other")
    with serve() as one, serve(id="big") as two, refused(ServerError, ["big", "tiny"]):
        engine(one, two)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"base_urls": ["host:8000"]}, ["base_urls", "'host:8000'"]),
        ({"base_urls": ["http://me:pass@host/v1"]}, ["base_urls", "api_key_env"]),
        ({"api_key_env": "NOT_SET_ANYWHERE"}, ["answers.openai.api_key_env", "NOT_SET_ANYWHERE"]),
    ],
)
def test_a_config_that_cannot_work_is_named(fields: dict, named: list[str]):
    config = OpenAIConfig(**({"base_urls": ["http://127.0.0.1:1/v1"]} | fields))
    with refused(ConfigError, *named) as error:
        OpenAISource(config, Settings(1, 0.0), tiny.tokenizer(), None, EOS)
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
    with serve(status(code)) as server, refused(ServerError, server.url, code):
        ask(engine(server))
