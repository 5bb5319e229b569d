"""Weights & Biases: the only module that imports wandb. The run's local JSON lines are always the complete record."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from data_specs.manifest import MANIFEST, Manifest, ManifestError, read_json
from pipeline import console
from pipeline.config import TrackingConfig
from pipeline.config.secrets import hidden, scrub
from pipeline.store.artifacts import Artifact

STATE = "tracking.json"  # holds the last step sent, in the run's working folder


class Tracker:
    """One run at W&B. With mode ``none`` (which imports nothing), or if not ``enabled``, it does nothing.

    W&B's files go to ``folder/wandb``, from which `wandb sync` sends offline runs later. ``state`` is the run's working
    folder, and ``run_id`` is the same when the run is resumed. A resumed run repeats the steps since its checkpoint but
    does not send them again, because W&B drops steps that go backwards (pitfall 37). If W&B fails after the start, the
    user is told once and tracking ends, but the run continues.
    """

    def __init__(
        self, config: TrackingConfig, folder: Path, state: Path, run_id: str, name: str, settings: Mapping[str, Any],
        enabled: bool = True,
    ) -> None:  # fmt: skip
        self._run: Any = None
        self._state = state / STATE
        self._sent = _read_sent(self._state)
        if enabled and config.mode != "none":
            self._run = _init(config, folder, run_id, name, scrub(settings))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of ``step``, unless that step or a later one was sent before."""
        if self._run is None or step <= self._sent:
            return
        if not self._send(lambda run: run.log({**metrics, "step": step})):
            return
        self._sent = step
        self._state.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._state.with_suffix(".tmp")
        temporary.write_text(json.dumps({"step": step}))
        temporary.replace(self._state)

    def artifact(self, artifact: Artifact, parents: Mapping[str, Artifact]) -> None:
        """Record an artifact by reference to its manifest, without contents, and what it was made from.

        Online, parents become inputs of the run. W&B has no such call offline, where the manifest has the lineage.
        """

        def record(run: Any) -> None:
            if not run.offline:
                for parent in parents.values():
                    run.use_artifact(_reference(parent))
            run.log_artifact(_reference(artifact), aliases=["latest", artifact.manifest.version])

        self._send(record)

    def finish(self, exit_code: int = 0) -> None:
        """Close the run; further calls do nothing."""
        self._send(lambda run: run.finish(exit_code=exit_code))
        self._run = None

    def _send(self, action: Callable[[Any], Any]) -> bool:
        """Do ``action`` with the run. False if there is no run, or no longer."""
        if self._run is None:
            return False
        import wandb
        from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError  # its service is gone

        try:
            action(self._run)
        except (wandb.Error, HandleAbandonedError, MailboxClosedError, OSError) as error:
            self._run = None
            reason = hidden(str(error)) or type(error).__name__
            console.say(
                f"W&B failed, so the run continues without it (its JSON lines are complete): {reason}"
            )
            return False
        return True


def track_figures(
    config: TrackingConfig, folder: Path, artifact: Artifact, figures: Mapping[str, float], used: Mapping[str, Artifact]
) -> None:  # fmt: skip
    """Send the figures of a finished ``artifact`` once, and what it was made from (role -> artifact)."""
    manifest = artifact.manifest
    with tempfile.TemporaryDirectory() as state:  # nothing is resumed: there is a single step
        run_id = manifest.fingerprint[:16]
        tracker = Tracker(config, folder, Path(state), run_id, artifact.reference, manifest.config)
        tracker.log(0, figures)
        tracker.artifact(artifact, used)
        tracker.finish()


def _init(config: TrackingConfig, folder: Path, run_id: str, name: str, settings: Any) -> Any:
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    # Metadata would include the command line, whose overrides may contain credentials.
    quiet = wandb.Settings(console="off", x_disable_meta=True, save_code=False, disable_git=True)
    run = wandb.init(
        project=config.project, entity=config.entity, mode=config.mode,  # type: ignore[arg-type]
        dir=folder, id=run_id, name=name, config=settings, settings=quiet,
        # W&B cannot be asked whether an offline run exists; `wandb sync` joins its parts by their id.
        resume="allow" if config.mode == "online" else None,
    )  # fmt: skip
    run.define_metric("*", step_metric="step")
    return run


def _reference(artifact: Artifact) -> Any:
    import wandb

    manifest: Manifest = artifact.manifest
    metadata = {
        "version": manifest.version, "fingerprint": manifest.fingerprint, "parents": manifest.parents,
        "counts": scrub(manifest.counts), "path": str(artifact.path.absolute()),
    }  # fmt: skip
    name = re.sub(r"[^\w.-]", "-", manifest.name)
    reference = wandb.Artifact(name, type=manifest.kind, metadata=metadata)
    reference.add_reference(f"file://{(artifact.path / MANIFEST).absolute()}", name=MANIFEST)
    return reference


def _read_sent(path: Path) -> int:
    """The last step that an earlier part of the run sent; -1 if there is none, or if a power cut damaged the file."""
    try:
        return int(read_json(path)["step"])
    except ManifestError:
        return -1
