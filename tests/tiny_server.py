"""A scripted server on 127.0.0.1: each request takes the next behaviour of the list, then all succeed."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import tiny

from pipeline.config import OpenAIConfig
from pipeline.prompts.chat import render_prompt
from pipeline.prompts.rows import Rejection
from stages.cache.source import AnswerReply, AnswerRequest, Settings
from stages.cache.source_openai import OpenAISource

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

    def send(self, status: int, body: object, promised: int | None = None, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
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
    *servers: Server, settings: Settings | None = None, thinking: bool | None = None, tokenizer=None, **fields
) -> OpenAISource:
    values = {"base_urls": [s.url for s in servers], "backoff": 0.01, "timeout": 0.4, "retries": 6} | fields
    return OpenAISource(
        OpenAIConfig(**values), settings or Settings(16, 0.0), tokenizer or tiny.tokenizer(), thinking, EOS
    )


def request(text: str = "q", limit: int = 100) -> AnswerRequest:
    messages = [{"role": "user", "content": text}]
    return AnswerRequest(messages, render_prompt(tiny.tokenizer(), messages, None), limit)


def ask(engine: OpenAISource, *requests: AnswerRequest, seed: int = 7) -> list[AnswerReply | Rejection]:
    return engine.answer(requests or [request()], seed, lambda tokens: None)
