"""What was known at the start is said at the start: a chain, a plan, a sweep, by the command that a user types."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra import initialize_config_dir

from data_specs import files
from pipeline import config as schema
from pipeline.__main__ import CONF, main
from pipeline.preflight import PreflightError
from stages import preflight

STATES = ("ok", "problem", "not checked")
ROWS = [{"prompt": f"Count to {n}.", "response": "1, 2"} for n in range(30)]


@pytest.fixture
def typed(tmp_path: Path, target_folder: Path) -> list[str]:
    """What a user types for a chain that has no problem."""
    for name in ("prompts", "asked"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return [
        f"artifacts={tmp_path / 'artifacts'}", f"hydra.run.dir={tmp_path / 'out'}",
        f"hydra.sweep.dir={tmp_path / 'out'}", "stage=all", "target=hf", "target.name=tiny",
        f"target.path={target_folder}", "target.dtype=float32", "target.num_taps=3", "data=local",
        f"data.sources=[{{path: {tmp_path / 'prompts.jsonl'}}}]", "capture.max_length=512", "drafter.depth=1",
        "train.epochs=null", "train.steps=2", "train.dtype=fp32", "deepspeed=zero0", "tracking=none", "ranks=1",
        "evaluate.benchmarks=[alpaca]", f"evaluate.files.alpaca={tmp_path / 'asked.jsonl'}",
        "evaluate.calibrate=false",
    ]  # fmt: skip


@pytest.fixture
def pipeline(typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run the command with more overrides; nothing may be made. Returns code, problems and marks of a plan."""

    def run(*overrides: str, first: str = "--run") -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["pipeline", first, *typed, *overrides])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        assert not (tmp_path / "artifacts").exists(), "nothing is begun"
        lines = [line for line in said.out.splitlines() if line[2:13].strip() in STATES]
        marks = {line[15:].partition(":")[0]: line[2:13].strip() for line in lines}
        return SimpleNamespace(code=code, error=said.err, out=said.out, marks=marks)

    return run


def test_a_plan_marks_every_line(pipeline) -> None:
    done = pipeline("plan=true")
    assert done.code == 0
    assert done.marks == {
        "target": "ok", "prompts": "ok", "where states are computed": "ok", "answers": "ok",
        "bytes of the target cache": "ok", "the target's tensors and the draft's layers": "ok",
        "cache to train on": "not checked", "bytes of checkpoints and draft": "ok",
        "draft to evaluate": "not checked", "benchmark alpaca": "ok", "calibration": "ok", "room on the disk": "ok",
    }  # fmt: skip


FAULTS = {
    "benchmark": ("evaluate.benchmarks=[alpaca,gsm8k]", "benchmark gsm8k", "openai/gsm8k"),
    "mask": ("target.mask_token_id=272", "the target's tensors and the draft's layers", "target.mask_token_id=272"),
    "vocabulary": ("drafter.vocab_size=272", "the target's tensors and the draft's layers", "drafter.vocab_size=272"),
    "taps": ("target.taps=[0,9]", "target", "target.taps=[0, 9]"),
    "start": ("drafter.init.draft=nowhere", "drafter.init.draft", "draft=nowhere"),
    "format": ("export=sglang drafter.vocab_size=64", "format sglang", "drafter.vocab_size"),
    "heldout": ("evaluate.calibrate=null data.heldout=1e-9", "calibration", "data.heldout=1e-09"),
    "all held out": ("data.heldout=0.9999", "prompts", "held out"),
    "positions": ("capture.max_length=4096 answers.max_new_tokens=2048", "answers", "capture.max_length=2048"),
    "short": ("capture.max_length=8", "answers", "30 rejected, prompt_beyond_capture.max_length=8"),
    "ranks": ("target.tensor_parallel=3 answers=given stage.steps=[cache]", "where states are computed", "parallel=3"),
    "vllm": ("capture.source=vllm capture.vllm.python=/nowhere", "where states are computed", "/nowhere"),
    "study": (
        "study.in_chain=true study.calibrated=false study.policies=[fixed_9] study.concurrencies=[1]",
        "policies and tables", "fixed_9",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refused_before_anything_is_begun(pipeline, fault: str) -> None:
    overrides, name, told = FAULTS[fault]
    done = pipeline(*overrides.split())
    assert done.code == 2 and name in done.error and told in done.error


def test_a_plan_marks_what_would_refuse_the_run(pipeline) -> None:
    done = pipeline(
        "evaluate.benchmarks=[alpaca,gsm8k]", "answers=given", "capture.max_length=8", "plan=true"
    )
    assert done.code == 0
    marks = {name: mark for name, mark in done.marks.items() if mark == "problem"}
    assert marks == {"answers": "problem", "benchmark gsm8k": "problem"}
    assert done.marks["calibration"] == "not checked"
    assert "turns" not in done.out, "no plan of answers that will all be rejected"


def test_several_problems_come_together(pipeline, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    done = pipeline("answers=given", "evaluate.benchmarks=[gsm8k,alpaca]", "export=vllm", "drafter=mtp")
    assert done.code == 2
    numbered = [line for line in done.error.splitlines() if line[:2] == "  "]
    assert [line.split(": ")[0] for line in numbered] == [
        "  1. prompts", "  2. benchmark gsm8k", "  3. format vllm",
    ]  # fmt: skip
    assert "{'no_answer': 1}" in numbered[0]


def test_a_full_disk_is_found_by_the_sum_of_the_steps(pipeline, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: SimpleNamespace(free=500_000))
    done = pipeline("capture.max_length=511")
    assert done.code == 2 and "room on the disk" in done.error


def test_all_jobs_of_a_sweep_are_checked_before_the_first(pipeline, tmp_path: Path) -> None:
    """Without the callback the job 0 would run, and the problem of job 1 be found after it."""
    done = pipeline("drafter=dspark,mtp", "export=vllm", first="-m")
    assert done.code == 2 and "job 1: format vllm" in done.error and "job 0" not in done.error
    assert not (tmp_path / "out" / "0").exists()


@pytest.mark.parametrize(
    ("arguments", "jobs"),
    [
        (["seed=0,1", "drafter=mtp"], [["seed=0", "drafter=mtp"], ["seed=1", "drafter=mtp"]]),
        (
            ["a=1,2", "b=x,y"],
            [["a=1", "b=x"], ["a=1", "b=y"], ["a=2", "b=x"], ["a=2", "b=y"]],
        ),
    ],
)
def test_the_jobs_of_a_sweep_are_in_hydras_order(arguments: list[str], jobs: list[list[str]]) -> None:
    schema.register()
    with initialize_config_dir(CONF, version_base=None):
        assert preflight.combinations(arguments) == jobs


def test_what_an_earlier_job_makes_is_no_problem_of_a_later_one(typed) -> None:
    schema.register()
    with initialize_config_dir(CONF, version_base=None):
        preflight.check_sweep([[*typed, "stage=cache"], [*typed, "stage=train"]])
        with pytest.raises(PreflightError, match="job 0: .*cache=tiny_local"):
            preflight.check_sweep([[*typed, "stage=train"], [*typed, "stage=cache"]])
        with pytest.raises(PreflightError, match=r"job 1: config: drafter.markov_rank"):
            preflight.check_sweep([typed, [*typed, "drafter=mtp", "drafter.markov_rank=4"]])


@pytest.mark.parametrize("first", ["--run", "-m"])
def test_a_secret_is_refused_before_anything_is_written(pipeline, tmp_path: Path, first: str) -> None:
    """Hydra writes overrides and config beside the run before it calls the entry."""
    done = pipeline("answers=openai", "answers.openai.base_urls=['http://h/v1?api_key=sk-1']", first=first)
    assert (
        done.code == 2 and "answers.openai.base_urls[0]" in done.error and "sk-1" not in done.error + done.out
    )
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not [path for path in written if "sk-1" in path.read_text()]
