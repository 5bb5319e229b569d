"""What engines that answer and evaluations of servers share; how both outlive failures is in their own tests."""

import httpx
import pytest
from tiny_errors import refused

from pipeline.config import AskingConfig, ConfigError
from pipeline.http_client import (
    Caller,
    FailureError,
    RefusalError,
    ServerError,
    are_ids,
    body_of,
    check_url,
    pick_model,
)


@pytest.mark.parametrize(
    "status,error", [(408, FailureError), (429, FailureError), (503, FailureError), (404, RefusalError)]
)
def test_failures_are_told_from_refusals(status, error):
    with refused(error, status, "no"):
        body_of(httpx.Response(status, text="no"))


@pytest.mark.parametrize("text,got", [("<html>", "'<html>'"), ("[1]", "list"), ('{"a": ', "'{\"a\": '")])
def test_a_body_is_a_json_object(text, got):
    assert body_of(httpx.Response(200, text='{"a": 1}')) == {"a": 1}
    with refused(FailureError, got):
        body_of(httpx.Response(200, text=text))


def test_the_model_is_the_one_that_is_wanted_or_the_first():
    body = {"data": [{"id": "a", "max_model_len": 9}, {"id": "b"}]}
    assert pick_model(body, None, "http://h") == ("a", {"id": "a", "max_model_len": 9})
    assert pick_model(body, "b", "http://h") == ("b", {"id": "b"})
    with refused(ServerError, "http://h", "c", ["a", "b"]):
        pick_model(body, "c", "http://h")
    with refused(ServerError, "http://h", []):
        pick_model({"data": []}, None, "http://h")
    for wrong in ({}, {"data": [3]}, {"data": None}, {"data": [{"name": "a"}]}):
        with refused(FailureError, wrong):
            pick_model(wrong, None, "http://h")


@pytest.mark.parametrize("url", ["host:8000", "ftp://host", "http://", "http://host:port"])
def test_a_url_is_named_by_its_key(url):
    check_url("http://host:1/v1", "server", "client.api_key_env")
    with refused(ConfigError, "server", repr(url)):
        check_url(url, "server", "client.api_key_env")


def test_ids():
    assert are_ids([0, 5]) and are_ids([])
    assert not any(map(are_ids, ([True], [-1], [1.0], "12", None)))


def test_a_missing_key_is_named():
    with refused(ConfigError, "client.api_key_env", "NOT_SET_ANYWHERE"):
        Caller(AskingConfig(api_key_env="NOT_SET_ANYWHERE"), "client")


@pytest.mark.parametrize(
    "url", ["http://h/v1?api_key=sk-1", "http://u:sk-1@h", "http://u:sk-1@h:port", "ftp://h?key=sk-1"]
)
def test_a_url_holds_and_shows_no_secret(url):
    with refused(ConfigError, "server") as error:
        check_url(url, "server", "client.api_key_env")
    assert "sk-1" not in str(error.value)


def test_a_key_that_a_server_echoes_is_cut_out(monkeypatch):
    monkeypatch.setenv("KEY_OF_TEST", "sk/1+2")
    caller = Caller(AskingConfig(api_key_env="KEY_OF_TEST"), "client")
    text = "bad keys sk/1+2, sk%2F1%2B2, sk%2f1%2b2 at http://u:p@h"
    assert caller.clean(text) == "bad keys ***, ***, *** at http://***@h"


def test_a_key_is_cut_out_before_a_long_message_is_shortened(monkeypatch):
    monkeypatch.setenv("KEY_OF_TEST", "secret-" * 8)
    caller = Caller(AskingConfig(api_key_env="KEY_OF_TEST"), "client")
    for place in range(540, 610, 7):
        said = caller.clean("x" * place + "secret-" * 8 + "y" * 900)
        assert "secret" not in said and len(said) <= 610
