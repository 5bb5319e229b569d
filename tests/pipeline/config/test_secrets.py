from urllib.parse import quote

import pytest
from composing import refusal
from tiny_errors import refused

from pipeline.config import ConfigError
from pipeline.config.secrets import hidden, pattern, refuse_secrets, scrub


def test_secrets_are_scrubbed() -> None:
    config = {
        "openai": {
            "api_key": "sk-1",
            "api_key_env": "MY_KEY",
            "base_urls": ["http://me:pw@host:8000/v1", "http://host/v1"],
        },
        "mask_token_id": 7,
        "password": "x",
        "max_new_tokens": 5,
    }
    assert scrub(config) == {
        "openai": {
            "api_key": "***",
            "api_key_env": "MY_KEY",
            "base_urls": ["http://***@host:8000/v1", "http://host/v1"],
        },
        "mask_token_id": 7,
        "password": "***",
        "max_new_tokens": 5,
    }


@pytest.mark.parametrize(
    "text,shown",
    [
        ("http://h/v1?api_key=sk-1", "http://h/v1?api_key=***"),
        ("http://h/v1?model=m&access%5Ftoken=a%2Fb&n=2", "http://h/v1?model=m&access%5Ftoken=***&n=2"),
        ("http://h/v1?api%5fKey=x#token=y", "http://h/v1?api%5fKey=***#token=***"),
        ("https://me:p@w@host/a@b", "https://***@host/a@b"),
        (
            "failed: http://u:p@h/x?sig=1 and http://h?key='2'",
            "failed: http://***@h/x?sig=*** and http://h?key='2'",
        ),
        ("http://h/a?page=2", "http://h/a?page=2"),
        ("a@b ?key=value", "a@b ?key=value"),
    ],
)
def test_secrets_in_urls_are_hidden(text: str, shown: str) -> None:
    assert hidden(text) == shown


def test_a_secret_is_refused_by_its_key_and_not_shown() -> None:
    urls = ["http://h/v1", "http://h/v1?api_key=sk-1"]
    with refused(ConfigError, "answers.openai.base_urls[1]") as error:
        refuse_secrets({"answers": {"openai": {"base_urls": urls}}, "server": "http://h"})
    assert "sk-1" not in str(error.value)
    said = refusal("server=http://me:hidden@h/", "engine=vllm", "stage=evaluate")
    assert said.startswith("server:") and "hidden@" not in said


@pytest.mark.parametrize("key", ["sk-a/b+c=", "g\u00e9heim", "a b\\c"])
def test_a_key_is_found_in_every_encoding(key: str) -> None:
    once = quote(key, safe="")
    everything = "".join(f"%{byte:02x}" for byte in key.encode())
    for text in (key, once, once.lower(), quote(once, safe=""), everything, key.replace("/", "\\/")):
        assert pattern(key).sub("***", f"wrong key <{text}>") == "wrong key <***>"
    assert pattern(key).sub("***", "another") == "another"
