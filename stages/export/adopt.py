"""``stage=import``: a draft that others trained, as an artifact in the native layout."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from data_specs.calibration import CALIBRATION, Calibration
from data_specs.draft import CONFIG, WEIGHTS
from data_specs.export import PROVENANCE
from data_specs.manifest import fingerprint, write_json
from pipeline import console
from pipeline.config import Config
from pipeline.ranks import is_main
from pipeline.store.artifacts import Artifact, Store, Work
from pipeline.store.work import WorkShare, begin_once, commit_once
from stages.export.lineage import calibration_of, carried, move_calibration
from stages.export.run import compare, identify
from stages.export.source import DraftSource, native_fields, read_source

SCHEMA_VERSION = 1  # of the draft artifact


def run_import(config: Config, store: Store, folder: Path) -> Artifact | None:
    """Import the draft in ``folder``; returns the artifact, which may be one that was made before.

    What an export says of its lineage comes along, and its calibration, now that of the files here. Raises
    ``UserError`` naming the field or the tensor that keeps it from drafting what it was trained to, or a calibration
    that is another draft's.
    """
    if not is_main():
        return None
    source, (_, name, contents) = read_source(folder), identify(folder)
    calibration, earlier = calibration_of(folder, source.facts.drafts), carried(folder)
    name = config.export.name or name
    made_of = fingerprint(
        SCHEMA_VERSION, "import", contents, *([earlier] if earlier else []),
        *([asdict(calibration)] if calibration else []),
    )  # fmt: skip
    if config.plan:
        console.say(f"import {name}: {len(source.tensors)} tensors. Nothing was written.")
        return None
    found = store.find("draft", made_of)
    if found is None:
        work = begin_once(
            store, "draft", name, SCHEMA_VERSION, made_of, {}, {"imported": {"contents": contents}}
        )
        found = work if isinstance(work, Artifact) else _write(store, work, source, earlier, calibration)
    _show(found, source)
    return found


def _write(
    store: Store, work: Work, source: DraftSource, earlier: dict[str, Any], calibration: Calibration | None
) -> Artifact:
    """config.json after the tensors, the calibration last: each says that what is before it is whole."""
    last = work.path / (CONFIG if calibration is None else CALIBRATION)
    for _ in WorkShare(work.path, ["write"], lambda _: last.is_file()):
        partial = work.path / f".{WEIGHTS}.{os.getpid()}.tmp"
        save_file(source.tensors, partial, metadata={"format": "pt"})
        partial.replace(work.path / WEIGHTS)
        if earlier:
            write_json(work.path / PROVENANCE, earlier)
        write_json(work.path / CONFIG, native_fields(source))
        compare(work.path, source)
        if calibration is not None:
            move_calibration(calibration, work.path)
    parameters = sum(value.numel() for value in source.tensors.values())
    return commit_once(store, work, lambda: {"parameters": parameters})


def _show(artifact: Artifact, source: DraftSource) -> None:
    facts = source.facts
    what = f"{facts.kind}, {facts.family} layers, {facts.drafts} drafts a round, taps {list(facts.taps)}"
    lines = [
        f"{artifact.reference}   {artifact.path}",
        what.replace("[", r"\["),
        "",
        f"measure it: python -m pipeline stage=evaluate target=TARGET draft={artifact.reference}",
    ]
    console.panel("Imported", lines)
