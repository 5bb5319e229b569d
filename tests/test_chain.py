"""The whole chain on a tiny target by the command that a user types: once in a process of its own, then in this one."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from data_specs.manifest import read_manifest
from pipeline.__main__ import main
from pipeline.store.artifacts import Store

ROOT = Path(__file__).parents[1]
PROMPT = {"prompt": "Count the apples on the table."}


def arguments(folder: Path, target: Path, *overrides: str) -> list[str]:
    return [
        f"artifacts={folder / 'artifacts'}", f"hydra.run.dir={folder / 'out'}",
        "target=hf", "target.name=tiny", f"target.path={target}", "target.dtype=float32", "target.num_taps=3",
        "data=local", f"data.sources=[{{path: {folder / 'prompts.jsonl'}}}]", "data.heldout=0",
        "answers.max_new_tokens=48", "answers.temperature=0", "drafter.depth=2", "drafter.markov_rank=16",
        "train.epochs=null", "train.steps=150", "train.global_batch=1", "train.micro_batch=1", "train.anchors=48",
        "train.lr=5e-3", "train.dtype=fp32", "train.workers=0", "train.checkpoint_every=100",
        "drafter.loss.ce_start=1.0", "drafter.loss.l1_start=0.0", "drafter.loss.ramp=[0.4,0.6]",
        "deepspeed=zero0", "tracking=none",
        "evaluate.benchmarks=[alpaca]", f"evaluate.files.alpaca={folder / 'prompts.jsonl'}",
        "evaluate.max_new_tokens=48", "evaluate.calibrate=false", *overrides,
    ]  # fmt: skip


@pytest.fixture
def pipeline(chain, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run ``python -m pipeline`` with more overrides on the chain's artifacts; returns its exit code and output."""

    def run(*overrides: str) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["pipeline", *arguments(*chain[:2], *overrides)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=said.out, stderr=said.err)

    return run


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory, target_folder: Path) -> tuple[Path, Path, str]:
    folder = tmp_path_factory.mktemp("chain")
    (folder / "prompts.jsonl").write_text(json.dumps(PROMPT) + "\n")
    command = [sys.executable, "-m", "pipeline", *arguments(folder, target_folder, "stage=all")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, target_folder, done.stdout


def test_a_draft_overfitted_on_one_sample_is_accepted_nearly_whole(chain: tuple[Path, Path, str]) -> None:
    """Pitfall 45, the cheapest test of the whole chain. 8 is seven drafts and the bonus token."""
    found = Store(chain[0] / "artifacts").resolve("evaluation", "tiny_dspark")
    summary = json.loads((found.path / "summary.json").read_text())
    counts = summary["benchmarks"]["alpaca"]["counts"]
    assert counts["prompts"] == 1
    assert summary["benchmarks"]["alpaca"]["metrics"]["accepted_length"]["value"] > 6


def test_lineage_runs_from_the_answers_to_the_evaluation(chain: tuple[Path, Path, str]) -> None:
    manifests = {a.manifest.kind: a.manifest for a in Store(chain[0] / "artifacts").list()}
    assert sorted(manifests) == ["answers", "cache", "draft", "evaluation"]
    assert manifests["cache"].parents == {"answers": manifests["answers"].fingerprint}
    assert manifests["draft"].parents == {"cache": manifests["cache"].fingerprint}
    assert manifests["evaluation"].parents == {"draft": manifests["draft"].fingerprint}


def test_a_second_run_does_nothing_again_and_says_so(chain: tuple[Path, Path, str], pipeline) -> None:
    before = Store(chain[0] / "artifacts").list()
    done = pipeline("stage=all")
    assert done.returncode == 0, done.stderr
    assert all(artifact.reference in done.stdout for artifact in before)
    assert [a.path for a in Store(chain[0] / "artifacts").list()] == [a.path for a in before]


def test_an_evaluation_takes_target_and_data_from_the_draft(
    chain: tuple[Path, Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the defaults smollm2 and quickstart: it is the evaluation of the chain."""
    given = arguments(*chain[:2], "stage=evaluate", "draft=tiny_dspark")
    monkeypatch.setattr(
        sys, "argv", ["pipeline", *(x for x in given if not x.startswith(("target", "data")))]
    )
    main()
    said = " ".join(capsys.readouterr().out.split())
    assert "target=tiny and data=local" in said
    assert "tiny_dspark:v0" in said


def test_list_shows_what_there_is(pipeline) -> None:
    done = pipeline("stage=list")
    assert "tiny_local:v0" in done.stdout and "tiny_dspark:v0" in done.stdout


def test_a_damaged_cache_is_refused_before_the_first_step(chain: tuple[Path, Path, str], pipeline) -> None:
    """One byte of the cache is flipped. The error on the command line is one line that names the file."""
    cache = Store(chain[0] / "artifacts").resolve("cache", "tiny_local")
    victim = next(p for p in cache.path.rglob("*") if p.is_file() and "/hidden/c/" in p.as_posix())
    whole = victim.read_bytes()
    victim.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    done = pipeline("stage=train", "seed=1")
    victim.write_bytes(whole)
    assert done.returncode == 2
    assert victim.name in done.stderr and "Traceback" not in done.stderr
    assert read_manifest(cache.path).kind == "cache"


@pytest.mark.parametrize(
    "overrides,message",
    [
        (["stage=train", "cache=nowhere"], "cache=nowhere: no such cache"),
        (["stage=evaluate", "draft=nowhere:v3"], "draft=nowhere:v3: no such draft"),
        (["stage=train", "train.steps=0"], "train.steps"),
    ],
)
def test_user_errors_are_one_line(pipeline, overrides: list[str], message: str) -> None:
    done = pipeline(*overrides)
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if line.startswith("draftline: error:")]
    assert len(said) == 1 and message in said[0] and "Traceback" not in done.stderr
