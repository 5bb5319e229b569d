"""How servers are asked, what their counters say of an answer, and what goes wrong."""

import asyncio
import json

import fake_engines
import pytest
from fake_engines import crowded, dies, half, raw, serving, status
from tiny_errors import refused

from pipeline.config import ClientConfig, Config
from pipeline.decoding.sampling import Sampler
from pipeline.http_client import Caller, FailureError, ServerError
from stages.served import engines
from stages.served.engines import Counters, ServedReply, difference, make_server, parse_metrics

PROMPT = [1, 2, 3]
ANSWER = [(7 * i + 6) % 250 for i in range(20)]
# Twelve tokens: one of the prefill, then steps that accept 2, 0, 1, 2, 0 and 1: 3 + 1 + 2 + 3 + 1 + 2, one too many
COUNTED = Counters(drafts=6, drafted=18, accepted=6, accepted_at=[4, 2, 0])


def server_of(fake, sampler=None, **client):
    values = {"backoff": 0.001, "timeout": 5.0, "retries": 6} | client
    config = Config(
        engine=fake.kind, server=fake.url if fake.draft else "elsewhere", client=ClientConfig(**values)
    )
    return make_server(config, fake.url, Caller(config.client, "client"), sampler or Sampler(), (258, 256))


def ask(fake, limit=12, **more):
    """Identify, then one answer."""
    server = server_of(fake, **more)

    async def both():
        async with server.caller.client() as client:
            known = await server.identify(client)
            return known, await server.answer(client, PROMPT, limit, 77)

    return asyncio.run(both())


# --- what is sent


def test_vllm_is_told_every_setting():
    with serving("vllm") as fake:
        ask(fake, sampler=Sampler(0.7, top_p=0.9, top_k=20))
        ask(fake)
    salts = [payload.pop("cache_salt") for payload in fake.payloads]
    assert len(set(salts)) == 2  # no answer reuses what another has prefilled
    common = {
        "model": "tiny", "prompt": PROMPT, "max_tokens": 12, "stop_token_ids": [258, 256], "return_token_ids": True,
        "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    }  # fmt: skip
    assert fake.payloads == [
        common | {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "seed": 77},
        common | {"temperature": 0.0, "top_p": 1.0, "top_k": -1},
    ]


def test_llama_cpp_is_told_every_setting_in_draftlines_order():
    with serving("llama_cpp") as fake:
        ask(fake, sampler=Sampler(0.7, top_p=0.9, min_p=0.1))
        ask(fake)
    common = {
        "prompt": PROMPT, "n_predict": 12, "return_tokens": True, "cache_prompt": False, "stream": False, "mirostat": 0,
        "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    }  # fmt: skip
    order = ["temperature", "top_k", "top_p", "min_p"]
    assert fake.payloads == [
        common | {"temperature": 0.7, "top_k": 0, "top_p": 0.9, "min_p": 0.1, "samplers": order, "seed": 77},
        common | {"temperature": 0.0, "top_k": 1, "samplers": ["top_k", "temperature"]},
    ]


# --- what comes back


@pytest.mark.parametrize("kind,version,context", [("vllm", "0.32.0", 200), ("llama_cpp", "b1234", 150)])
def test_an_answer_and_its_counters(kind, version, context):
    with serving(kind) as fake:
        fake.add(100, [1, 2, 3])  # what was served before does not count
        known, reply = ask(fake)
    assert (known.model, known.version, known.context) == ("tiny", version, context)
    assert reply == ServedReply(ANSWER[:12], "length", reply.seconds, COUNTED)
    assert 0 < reply.seconds < 5


@pytest.mark.parametrize("kind", ["vllm", "llama_cpp"])
def test_an_end_token_ends_an_answer(kind):
    with serving(kind, length=5) as fake:
        _, reply = ask(fake)
    assert (reply.ids, reply.finish) == ([*ANSWER[:4], 258], "stop")
    assert reply.counters == Counters(2, 6, 2, [1, 1, 0])


def test_llama_cpp_without_metrics_tells_two_numbers():
    with serving("llama_cpp", metrics=False) as fake:
        _, reply = ask(fake)
        _, short = ask(fake, limit=1)
    assert reply.counters == Counters(None, 18, 6, None)
    assert short.counters == Counters(None, 0, 0, None)


def test_llama_cpp_rounds_large_counters(capsys):
    """A count of a million is written as 1e+06, and stays so for the next five tokens."""
    with serving("llama_cpp") as fake:
        fake.counts["generated"] = 1_000_000
        _, reply = ask(fake)
        ask(fake)
    assert reply.counters == Counters(None, 18, 6, None)
    assert capsys.readouterr().out.count("more than six digits") == 2  # once a run


@pytest.mark.parametrize("kind", ["vllm", "llama_cpp"])
def test_a_plain_server_has_no_counters(kind):
    with serving(kind, draft=False) as fake:
        _, reply = ask(fake)
    assert reply == ServedReply(ANSWER[:12], "length", reply.seconds, None)


def test_no_path_of_the_servers_machine_is_kept():
    with serving("llama_cpp", model="/home/me/models/target.gguf") as fake:
        assert ask(fake)[0].model == "target.gguf"


# --- what goes wrong


def bad_body(kind, **fields):
    """A whole body with fields that are wrong."""
    if kind == "vllm":
        return raw(json.dumps({"choices": [{"token_ids": [1], "finish_reason": "stop"} | fields]}).encode())
    return raw(json.dumps({"tokens": [1], "stop_type": "eos", "timings": {}} | fields).encode())


FAULTS = {
    "vllm": [{"token_ids": ["x"]}, {"token_ids": []}, {"finish_reason": "abort"}, {"finish_reason": None}],
    "llama_cpp": [
        {"tokens": "x"}, {"tokens": []}, {"stop_type": "none"}, {"timings": None},
        {"timings": {"draft_n": float("nan"), "draft_n_accepted": 1}}, {"timings": {"draft_n": 3}},
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", ["vllm", "llama_cpp"])
def test_every_kind_of_failure_is_outlived(kind, monkeypatch):
    """429, 500, garbage, half a body, wrong fields, NaN, a restart, somebody else's answers; then success."""
    monkeypatch.setattr(engines, "SETTLE_SECONDS", 0.03)
    script = [status(429), status(500), raw(b"<html>"), raw(b"[]"), raw(b"{}"), half, dies, crowded]
    script += [bad_body(kind, **fields) for fields in FAULTS[kind]]
    with serving(kind, *script) as fake:
        _, reply = ask(fake, retries=len(script) + 1, backoff=0)
    assert reply == ServedReply(ANSWER[:12], "length", reply.seconds, COUNTED)
    assert len(fake.payloads) == len(script) + 1


def test_a_crowded_server_is_given_up_with_the_reason(monkeypatch):
    monkeypatch.setattr(engines, "SETTLE_SECONDS", 0.05)
    with serving("vllm", *[crowded] * 3) as fake, refused(ServerError, fake.url, "/metrics", 17, 12):
        ask(fake, retries=2)


def test_counters_that_stay_behind_are_waited_for(monkeypatch):
    reads = []
    metrics = fake_engines.Fake.metrics

    def late(self):
        reads.append(1)
        kept = dict(self.counts)
        if len(reads) in (3, 4):  # after identify and before the answer: the first two looks after it
            self.counts["generated"] -= 12
        text = metrics(self)
        self.counts = kept
        return text

    monkeypatch.setattr(fake_engines.Fake, "metrics", late)
    with serving("vllm") as fake:
        assert ask(fake)[1].counters == COUNTED
    assert len(reads) == 5


def test_vllm_without_a_draft_is_named():
    with serving("vllm") as fake:
        server = server_of(fake)
        fake.draft = False
        with refused(ServerError, f"{fake.url}/metrics", "vllm:spec_decode_..."):
            asyncio.run(server.identify(server.caller.client()))
    assert fake.payloads == []


@pytest.mark.parametrize("kind", ["vllm", "llama_cpp"])
def test_a_plain_server_with_a_draft_is_named(kind):
    with serving(kind) as fake:
        server = server_of(fake)
        server.drafts = False
        with refused(ServerError, f"plain_server={fake.url}"):

            async def both():
                client = server.caller.client()
                await server.identify(client)
                await server.answer(client, PROMPT, 12, 0)

            asyncio.run(both())


def test_an_old_vllm_without_ids_is_named():
    with (
        serving("vllm", bad_body("vllm", token_ids=None)) as fake,
        refused(ServerError, fake.url, "token_ids", "0.10.2"),
    ):
        ask(fake)


def test_another_model_is_named():
    with serving("vllm") as fake, refused(ServerError, fake.url, "big", ["tiny"]):
        ask(fake, model="big")


def test_a_refusal_comes_at_once_and_without_the_key(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret-123")
    with (
        serving("vllm", status(400, "too long, secret-123")) as fake,
        refused(ServerError, fake.url, 400, "too long, ***"),
    ):
        ask(fake, api_key_env="MY_KEY")
    assert fake.authorizations[0] == "Bearer secret-123" and len(fake.payloads) == 1


# --- counters as text


def test_counters_are_added_up_over_engines():
    text = """
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a"} 114.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="a"} 1e+01
vllm:spec_decode_num_drafts_created{engine="0",model_name="a"} 1.7e+09
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="a",position="0"} 27.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="a",position="10"} 2.0
vllm:generation_tokens_total{engine="0"} 192.0 1700000000
"""
    found = parse_metrics(text, "vllm:", "generation_tokens_total")
    assert found == {"drafts": 124, "at/0": 27, "at/10": 2, "generated": 192}
    grown = difference({"drafts": 100, "generated": 2}, found)
    assert grown == {"drafts": 24, "at/0": 27, "at/10": 2, "generated": 190}
    with refused(FailureError, "/metrics", "drafts", 125, 124):
        difference({"drafts": 125, "generated": 2}, found)


@pytest.mark.parametrize("value", ["NaN", "-1", "1.5", "+Inf", "many"])
def test_counters_that_are_none_are_named(value):
    with refused(FailureError, f"'vllm:generation_tokens_total {value}'"):
        parse_metrics(f"vllm:generation_tokens_total {value}", "vllm:", "generation_tokens_total")


def test_a_page_without_counters_is_named():
    with refused(FailureError, "vllm:generation_tokens_total", "'<html>'"):
        parse_metrics("<html>", "vllm:", "generation_tokens_total")
