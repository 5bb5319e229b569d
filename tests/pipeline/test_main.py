"""What the entry imports, and the last step of a chain: a study under load only where it is asked for."""

import errno
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

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


@pytest.mark.parametrize(
    ("steps", "plan", "told"), [(["a", "b"], False, 1), (["a"], False, 0), (["a", "b"], True, 0)]
)
def test_the_first_screen_of_a_chain_names_its_steps_and_its_folder(
    monkeypatch, capsys, tmp_path, steps, plan, told
):
    made = dict.fromkeys(steps, lambda config, store, made: made.update({str(len(made)): "an artifact"}))
    monkeypatch.setattr(entry, "STEPS", made)
    monkeypatch.setattr(entry.listing, "show_made", lambda made: None)
    stage, target = SimpleNamespace(steps=steps), SimpleNamespace(name="tiny")
    entry.run(SimpleNamespace(stage=stage, target=target, plan=plan, artifacts=tmp_path / "kept"))
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("tiny: a, then b.") == shown.count(str(tmp_path / "kept")) == told


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


SYSTEM = {
    "ENOSPC": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "EROFS": OSError(errno.EROFS, os.strerror(errno.EROFS), "/x/made"),
    "ENAMETOOLONG": OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), "/x/made"),
    "EACCES": PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/x/made"),
}


@pytest.fixture
def ended(monkeypatch, capsys, tmp_path):
    """Run ``stage`` with a step that raises ``error``; returns the exit code and what was said."""

    def run(stage: str, error: BaseException) -> tuple[int, str]:
        def step(*_: object) -> None:
            raise error

        monkeypatch.setitem(entry.STEPS, stage, step)
        monkeypatch.setattr(entry.preflight, "of_steps", lambda *_: {})
        typed = [
            "target=hf",
            "target.path=x",
            "target.name=t",
            "data=local",
            "data.sources=[{path: x}]",
            "ranks=1",
        ]
        typed += [
            "export=vllm",
            f"stage={stage}",
            f"artifacts={tmp_path}/made",
            f"hydra.run.dir={tmp_path}/out",
        ]
        monkeypatch.setattr(entry, "resolve", OmegaConf.to_object)  # a comparison of nothing would be refused
        monkeypatch.setattr(sys, "argv", ["pipeline", *typed])
        with pytest.raises(SystemExit) as end:
            entry.main()
        return end.value.code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("stage", sorted({*entry.STEPS} - {"compare"}))  # it wants variants first
def test_a_system_error_is_one_line_in_every_stage(ended, tmp_path, stage):
    for name, error in SYSTEM.items():
        code, said = ended(stage, error)
        assert code == 2 and said.count("\n") == 1, said
        place = error.filename or f"{tmp_path}/made"
        assert f"{place}: {error.strerror} ({name})" in said and "the same command" in said


@pytest.mark.parametrize("stage", sorted({*entry.STEPS} - {"compare"}))  # it wants variants first
def test_ctrl_c_is_one_line_in_every_stage(ended, stage):
    code, said = ended(stage, KeyboardInterrupt())
    assert code == 130 and said.count("\n") == 1 and "the same command" in said


def test_a_folder_that_hydra_cannot_write_to_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    typed = ["stage=list", f"artifacts={tmp_path}", f"hydra.run.dir={tmp_path}/file/run"]
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *typed], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"{tmp_path}/file/run" in done.stderr and "ENOTDIR" in done.stderr
