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
