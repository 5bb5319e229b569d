import pytest
from tiny_errors import refused

from pipeline.config import AnswersConfig, ConfigError
from stages.cache.source import Settings, effective_settings, left_out

SAMPLED = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05}


def settings(generation: dict, **fields) -> Settings:
    return effective_settings(AnswersConfig(source="hf", max_new_tokens=9, **fields), generation)


def test_none_means_as_the_targets_generation_config():
    assert settings(SAMPLED) == Settings(9, 0.6, 0.95, 20, None, 1.05)
    assert settings({"do_sample": True}) == Settings(9, 1.0)
    assert settings({"do_sample": False, "temperature": 0.6, "top_k": 20}) == Settings(9, 0.0)
    assert settings({}) == Settings(9, 0.0)


def test_what_is_configured_comes_first():
    assert settings(SAMPLED, temperature=1.5, top_k=5, min_p=0.1) == Settings(9, 1.5, 0.95, 5, 0.1, 1.05)
    assert settings({}, temperature=0.7, top_p=0.9) == Settings(9, 0.7, 0.9)
    assert settings(SAMPLED, temperature=0.0) == Settings(9, 0.0, repetition_penalty=1.05)


def test_neutral_values_are_off():
    neutral = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0}
    assert settings({}, temperature=1.0, **neutral).active() == {"max_new_tokens": 9, "temperature": 1.0}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"top_p": 0.9}, ["answers.top_p", "answers.temperature"]),
        ({"temperature": 0.0, "min_p": 0.1}, ["answers.min_p", "answers.temperature"]),
        ({"temperature": -1.0}, ["temperature", -1.0]),
        ({"temperature": 1.0, "top_p": 1.2}, ["top_p", 1.2]),
        ({"temperature": 1.0, "top_k": -3}, ["top_k", -3]),
        ({"repetition_penalty": 0.0}, ["answers.repetition_penalty", 0.0]),
    ],
)
def test_bad_settings_are_named(fields: dict, named: list):
    with refused(ConfigError, *named):
        settings({}, **fields)


def test_generation_settings_that_no_engine_applies_are_found():
    assert left_out(
        {"no_repeat_ngram_size": 3, "typical_p": 1.0, "suppress_tokens": [1], "min_new_tokens": 0}
    ) == [
        "no_repeat_ngram_size",
        "suppress_tokens",
    ]
