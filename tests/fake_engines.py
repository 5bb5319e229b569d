"""Servers on 127.0.0.1 that answer and count as vLLM and llama.cpp do, without a model.

Each step of an answer drafts ``DRAFTS`` tokens and accepts as many as ``PATTERN`` says, in turn. The prefill gives
1 token, each step accepted + 1. The step that reaches the limit or the end token counts all of its drafts.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATTERN, DRAFTS, EOS = (2, 0, 1), 3, 258
Behaviour = Callable[["Handler", dict], None]


class Fake(ThreadingHTTPServer):
    """``script`` has the behaviours of the next answers; later ones succeed. An answer has ``length`` tokens."""

    daemon_threads = True

    def __init__(self, kind: str, script=(), draft=True, metrics=True, length=20, model="tiny", hidden=32):
        super().__init__(("127.0.0.1", 0), Handler)
        self.kind, self.script, self.draft, self.shows, self.length = (
            kind,
            list(script),
            draft,
            metrics,
            length,
        )
        self.model, self.hidden = model, hidden
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.payloads: list[dict] = []
        self.authorizations: list[str | None] = []
        self.counts = {"generated": 0, "drafts": 0, "drafted": 0, "accepted": 0}
        self.at = [0] * DRAFTS

    def decode(self, prompt: list[int], limit: int) -> dict:
        """Make one answer and count it."""
        whole = [(7 * i + sum(prompt)) % 250 for i in range(self.length - 1)] + [EOS]
        emitted, steps = 1, []
        while self.draft and emitted < min(limit, self.length):
            steps.append(PATTERN[len(steps) % len(PATTERN)])
            emitted += steps[-1] + 1
        ids = whole[:limit]
        counted = {"drafted": DRAFTS * len(steps), "accepted": sum(steps)}
        self.add(len(ids), steps)
        return {"ids": ids, "stopped": ids[-1] == EOS} | counted

    def add(self, generated: int, steps=()) -> None:
        self.counts["generated"] += generated
        self.counts["drafts"] += len(steps)
        self.counts["drafted"] += DRAFTS * len(steps)
        self.counts["accepted"] += sum(steps)
        self.at = [n + sum(step > k for step in steps) for k, n in enumerate(self.at)]

    def metrics(self) -> str:
        prefix, tokens = (
            ("vllm:", "generation_tokens") if self.kind == "vllm" else ("llamacpp:", "tokens_predicted")
        )
        labels = '{engine="0",model_name="a} b"}' if self.kind == "vllm" else ""
        lines = ["# HELP something 1", f"{prefix}{tokens}_total{labels} {float(self.counts['generated'])}"]
        if self.draft or self.kind == "llama_cpp":
            names = {"drafts": "num_drafts", "drafted": "num_draft_tokens", "accepted": "num_accepted_tokens"}
            lines += [f"{prefix}spec_decode_{n}_total{labels} {self.counts[k]}" for k, n in names.items()]
        if self.draft and (self.kind == "vllm" or self.counts["drafts"]):
            places = [f'{labels[:-1] + "," if labels else "{"}position="{k}"}}' for k in range(DRAFTS)]
            name = f"{prefix}spec_decode_num_accepted_tokens_per_pos_total"
            lines += [f"{name}{place} {self.at[k]:.1f}" for k, place in enumerate(places)]
        return "\n".join(lines) + "\n"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Fake

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:  # noqa: N802
        fake = self.server
        fake.authorizations.append(self.headers.get("Authorization"))
        vllm = fake.kind == "vllm"
        card = {"id": fake.model} | ({"max_model_len": 200} if vllm else {"meta": {"n_embd": fake.hidden}})
        pages = {"/v1/models": {"data": [card]}}
        if vllm:
            pages["/version"] = {"version": "0.32.0"}
        else:
            pages["/props"] = {"build_info": "b1234", "default_generation_settings": {"n_ctx": 150}}
        if self.path == "/metrics":
            shown = vllm or fake.shows
            self.send(200 if shown else 501, fake.metrics().encode() if shown else {"error": "no metrics"})
        else:
            self.send(200 if self.path in pages else 404, pages.get(self.path, {}))

    def do_POST(self) -> None:  # noqa: N802
        assert self.path == ("/v1/completions" if self.server.kind == "vllm" else "/completion")
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.payloads.append(payload)
        behave = self.server.script.pop(0) if self.server.script else answer
        behave(self, payload)

    def body(self, payload: dict) -> dict:
        vllm = self.server.kind == "vllm"
        made = self.server.decode(payload["prompt"], payload["max_tokens" if vllm else "n_predict"])
        if vllm:
            reason = "stop" if made["stopped"] else "length"
            return {"choices": [{"text": "", "token_ids": made["ids"], "finish_reason": reason}]}
        timings = {"predicted_n": len(made["ids"])}
        if made["drafted"]:
            timings |= {"draft_n": made["drafted"], "draft_n_accepted": made["accepted"]}
        return {"tokens": made["ids"], "stop_type": "eos" if made["stopped"] else "limit", "timings": timings}

    def send(self, status: int, body: object, promised: int | None = None) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(promised or len(content)))
        self.end_headers()
        self.wfile.write(content)


def answer(handler: Handler, payload: dict) -> None:
    handler.send(200, handler.body(payload))


def status(code: int, text: str = "not now") -> Behaviour:
    return lambda handler, _: handler.send(code, {"error": {"message": text}})


def raw(content: bytes) -> Behaviour:
    return lambda handler, _: handler.send(200, content)


def half(handler: Handler, payload: dict) -> None:
    content = json.dumps(handler.body(payload)).encode()
    handler.send(200, content[: len(content) // 2], promised=len(content))
    handler.close_connection = True


def crowded(handler: Handler, payload: dict) -> None:
    """The server also answers somebody else at the same time."""
    handler.server.add(5, [3])
    answer(handler, payload)


def dies(handler: Handler, payload: dict) -> None:
    """The server restarts: its counters begin at 0, and this request is lost."""
    handler.server.counts, handler.server.at = dict.fromkeys(handler.server.counts, 0), [0] * DRAFTS
    handler.close_connection = True


@contextmanager
def serving(kind: str, *script: Behaviour, **more) -> Iterator[Fake]:
    server = Fake(kind, script, **more)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
