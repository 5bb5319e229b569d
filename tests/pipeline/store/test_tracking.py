import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import wandb

from data_specs.manifest import Manifest, write_manifest
from pipeline.config import TrackingConfig
from pipeline.store.artifacts import Artifact
from pipeline.store.tracking import STATE, Tracker


def artifact(folder: Path, kind: str, name: str, parents: dict[str, str]) -> Artifact:
    folder.mkdir()
    manifest = Manifest(
        kind, name, "v0", 1, f"{name}-print", parents, {}, {"steps": 3}, {}, None, "2026-11-29"
    )
    write_manifest(folder, manifest)
    return Artifact(folder, manifest)


def test_mode_none_imports_and_writes_nothing(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from pipeline.config import TrackingConfig
from pipeline.store.tracking import Tracker
folder = Path({str(tmp_path)!r})
tracker = Tracker(TrackingConfig(mode="none"), folder, folder, "id", "name", {{}})
tracker.log(1, {{"loss": 1.0}})
tracker.finish()
assert "wandb" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert list(tmp_path.iterdir()) == []


class Recorder:
    """Stands where wandb's run is, and keeps what it is given."""

    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []

    def log(self, line: dict[str, float]) -> None:
        self.lines.append(line)


def test_steps_never_go_backwards_over_resumes(tmp_path: Path) -> None:
    """Pitfall 37: two resumes from step 2 repeat steps 3 and 4; each step is sent once, in order."""
    recorder = Recorder()
    for steps in ([1, 2, 3, 4], [3], [3, 4, 5]):
        tracker = Tracker(TrackingConfig(mode="none"), tmp_path, tmp_path, "id", "name", {})
        tracker._run = recorder
        for step in steps:
            tracker.log(step, {"loss": 0.5})
    assert [line["step"] for line in recorder.lines] == [1, 2, 3, 4, 5]
    assert json.loads((tmp_path / "tracking.json").read_text()) == {"step": 5}


class Broken:
    """Stands where wandb's run is, and fails."""

    offline = False

    def __init__(self, error: Exception) -> None:
        self.error, self.calls = error, 0

    def fail(self, *_: object, **__: object) -> None:
        self.calls += 1
        raise self.error

    log = use_artifact = finish = fail


@pytest.mark.parametrize("error", [wandb.errors.CommError("[no] route"), BrokenPipeError("[no] route")])
@pytest.mark.parametrize("call", ["log", "artifact", "finish"])
def test_a_failure_in_the_middle_ends_the_tracking_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception, call: str
) -> None:
    tracker = Tracker(TrackingConfig(mode="none"), tmp_path, tmp_path, "id", "name", {})
    tracker._run = broken = Broken(error)
    made = artifact(tmp_path / "draft", "draft", "tiny_dspark", {})
    if call == "log":
        tracker.log(1, {"loss": 0.5})
    if call == "artifact":
        tracker.artifact(made, {"cache": made})
    tracker.finish()
    tracker.log(2, {"loss": 0.5})
    tracker.artifact(made, {"cache": made})
    assert broken.calls == 1
    assert capsys.readouterr().out.count("W&B failed") == 1
    assert not (tmp_path / "tracking.json").exists()


def test_a_state_that_a_power_cut_emptied_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / STATE).write_text("")
    assert Tracker(TrackingConfig(mode="none"), tmp_path, tmp_path, "id", "name", {})._sent == -1


def test_other_errors_are_not_swallowed(tmp_path: Path) -> None:
    tracker = Tracker(TrackingConfig(mode="none"), tmp_path, tmp_path, "id", "name", {})
    tracker._run = Broken(TypeError("our own bug"))
    with pytest.raises(TypeError, match="our own bug"):
        tracker.log(1, {"loss": 0.5})


def test_the_run_outlives_the_service_of_wandb(tmp_path: Path) -> None:
    """W&B's own process is killed in the middle: what it then raises is among what is caught."""
    code = f"""
import time
from pathlib import Path
import psutil
from pipeline.config import TrackingConfig
from pipeline.store.tracking import Tracker
folder = Path({str(tmp_path)!r})
tracker = Tracker(TrackingConfig(mode="offline"), folder, folder, "id", "name", {{}})
tracker.log(1, {{"loss": 1.0}})
services = psutil.Process().children(recursive=True)
assert services, "W&B runs in a process of its own"
for service in services:
    service.kill()
psutil.wait_procs(services)
for step in range(2, 6):
    time.sleep(0.1)
    tracker.log(step, {{"loss": 1.0}})
tracker.finish()
print("the run's end")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("W&B failed") == 1
    assert done.stdout.splitlines()[-1] == "the run's end"


def test_offline_run_with_artifacts(tmp_path: Path) -> None:
    """W&B itself, offline: metrics, the artifact and its lineage go in, no secret does."""
    parent = artifact(tmp_path / "cache", "cache", "tiny_chat", {})
    child = artifact(tmp_path / "draft", "draft", "tiny_dspark", {"cache": "tiny_chat-print"})
    run = tmp_path / "run"
    run.mkdir()
    tracker = Tracker(
        TrackingConfig(mode="offline"), run, tmp_path, "abc123", "tiny", {"url": "http://me:hunter2@host"}
    )
    tracker.log(1, {"loss": 2.0})
    tracker.artifact(child, {"cache": parent})
    tracker.finish()
    (file,) = run.glob("wandb/offline-run-*-abc123/*.wandb")
    deadline = time.monotonic() + 10  # W&B's service may write the last block after finish() has returned
    while b"tiny_dspark" not in file.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert b"tiny_dspark" in file.read_bytes()
    assert b"tiny_chat-print" in file.read_bytes()
    everything = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert b"hunter2" not in everything
