"""The last step of a chain: a study under load only where it is asked for."""

from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_dir

from pipeline import __main__ as entry
from pipeline import config as schema


@pytest.mark.parametrize(
    ("steps", "in_chain", "called"),
    [
        (["cache", "train", "evaluate", "study"], False, False),
        (["cache", "train", "evaluate", "study"], True, True),
        (["study"], False, True),
    ],
)
def test_a_study_ends_a_chain_where_it_is_asked_for(monkeypatch, steps, in_chain, called):
    calls = []
    monkeypatch.setattr(entry, "_call", lambda *given: calls.append(given) or "the study")
    config = SimpleNamespace(stage=SimpleNamespace(steps=steps), study=SimpleNamespace(in_chain=in_chain))
    made = {"draft": "the draft"}
    entry.run_study(config, "the store", made)
    expected = [("stages.study.run", "run_study", config, "the store", "the draft")]
    assert calls == (expected if called else [])
    assert made.get("study") == ("the study" if called else None)


def test_the_quickstart_asks_for_it():
    schema.register()
    with initialize_config_dir(entry.CONF, version_base=None):
        config = schema.resolve(compose("config", ["stage=all", "experiment=quickstart"]))
        without = schema.resolve(compose("config", ["stage=all", "experiment=smollm2"]))
    assert config.stage.steps[-1] == "study" and config.study.in_chain
    assert (config.study.policies, config.study.concurrencies) == (["plain", "fixed", "algorithm_1"], [8])
    assert not without.study.in_chain
