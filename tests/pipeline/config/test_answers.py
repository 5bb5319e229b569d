import pytest
from composing import accepted, composed, lacking, out_of_range, refusal

from pipeline.config import AnswersConfig, ClientConfig, section

URLS = "answers.openai.base_urls=[http://127.0.0.1:1/v1]"


def test_defaults():
    asking = {"model": None, "retries": 6, "backoff": 1.0, "timeout": 600.0, "api_key_env": None}
    sampling = dict.fromkeys(
        [
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        ]
    )
    assert section(AnswersConfig("hf")) == sampling | {
        "source": "hf", "max_new_tokens": 512, "batch_size": 32, "chunk_prompts": 128,
        "openai": asking | {"base_urls": [], "concurrency": 64},
    }  # fmt: skip
    assert section(ClientConfig()) == asking | {"note": None}


@pytest.mark.parametrize(
    "override",
    [
        "answers.source=vllm",
        "answers.max_new_tokens=0",
        "answers.temperature=-0.1",
        "answers.top_p=0.0",
        "answers.top_p=1.1",
        "answers.top_k=-2",
        "answers.min_p=-0.1",
        "answers.min_p=1.1",
        "answers.repetition_penalty=0.0",
        "answers.presence_penalty=-2.1",
        "answers.presence_penalty=2.1",
        "answers.frequency_penalty=2.1",
        "answers.batch_size=0",
        "answers.chunk_prompts=0",
        "answers.openai.retries=-1",
        "answers.openai.timeout=0.0",
        "answers.openai.concurrency=0",
        "client.backoff=-1.0",
    ],
)
def test_a_value_out_of_its_range_is_named(override: str):
    assert out_of_range(override) == override


@pytest.mark.parametrize(
    "override",
    [
        "answers.source=given",
        "answers.max_new_tokens=1",
        "answers.temperature=0.0",
        "answers.top_p=1.0",
        "answers.top_k=-1",
        "answers.min_p=0.0",
        "answers.min_p=1.0",
        "answers.openai.retries=0",
        "answers.openai.backoff=0.0",
    ],
)
def test_the_ends_of_a_range_are_in_it(override: str):
    assert accepted(override) == override


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_penalties_are_a_server_s(penalty: str):
    for value in (-2.0, 2.0):
        override = f"answers.{penalty}={value}"
        assert accepted(override, "answers=openai", URLS) == override
    assert lacking(refusal(override), [f"answers.{penalty}", "answers=hf"]) == []


def test_a_server_has_an_address():
    assert refusal("answers=openai").startswith("answers.openai.base_urls:")
    assert composed("answers=openai", URLS).answers.openai.base_urls == ["http://127.0.0.1:1/v1"]
