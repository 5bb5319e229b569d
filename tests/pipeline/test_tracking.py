import json
import subprocess
import sys
import time
from pathlib import Path

from data_specs.manifest import Manifest, write_manifest
from pipeline.artifacts import Artifact
from pipeline.config import TrackingConfig
from pipeline.tracking import Tracker, scrub


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
from pipeline.tracking import Tracker
folder = Path({str(tmp_path)!r})
tracker = Tracker(TrackingConfig(mode="none"), folder, folder, "id", "name", {{}})
tracker.log(1, {{"loss": 1.0}})
tracker.finish()
assert "wandb" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert list(tmp_path.iterdir()) == []


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
