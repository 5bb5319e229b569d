"""What the entry imports, and the last step of a chain: a study under load only where it is asked for."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_dir

from pipeline import __main__ as entry
from pipeline import config as schema
from stages.study import run as study


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
    monkeypatch.setattr(study, "run_study", lambda *given: calls.append(given) or "the study")
    config = SimpleNamespace(stage=SimpleNamespace(steps=steps), study=SimpleNamespace(in_chain=in_chain))
    made = {"draft": "the draft"}
    entry.run_study(config, "the store", made)
    expected = [(config, "the store", "the draft")]
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


@pytest.mark.parametrize("argument", ["stage=list", "--help"])
def test_what_shows_a_list_or_the_help_loads_no_model_library(argument, tmp_path):
    """It answers at once: torch alone takes seconds to import."""
    code = f"""
import atexit, sys
atexit.register(lambda: print("loaded:", sorted({{"torch", "transformers", "datasets"}} & set(sys.modules))))
sys.argv = ["pipeline", {argument!r}, "artifacts={tmp_path}", "hydra.run.dir={tmp_path}/run"]
from pipeline.__main__ import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "loaded: []"
