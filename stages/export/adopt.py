"""``stage=import`` makes an artifact in the native layout from a draft that others trained."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from data_specs.calibration import CALIBRATION, Calibration
from data_specs.draft import CONFIG, WEIGHTS
from data_specs.export import PROVENANCE
from data_specs.files import written_whole
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
    """Import the draft in ``folder`` and return its artifact, which may exist already. Returns None with ``plan``.

    The provenance and the calibration of an export are imported too. Raises ``UserError`` with the field or the tensor
    because of which the draft would not work as trained, or if the calibration belongs to another draft.
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
        settings = {"imported": {"contents": contents}}
        work = begin_once(store, "draft", name, SCHEMA_VERSION, made_of, {}, settings)
        found = work if isinstance(work, Artifact) else _write(store, work, source, earlier, calibration)
    facts = source.facts
    lines = [
        f"{found.reference}   {found.path}",
        f"{facts.kind}, {facts.family} layers, {facts.drafts} drafts a round, taps {list(facts.taps)}",
        "",
        f"measure it: python -m pipeline stage=evaluate target=TARGET draft={found.reference}",
    ]
    console.panel("Imported", lines)
    return found


def _write(
    store: Store, work: Work, source: DraftSource, earlier: dict[str, Any], calibration: Calibration | None
) -> Artifact:
    """Write the tensors, config.json and finally the calibration. The last file marks the others as complete."""
    last = work.path / (CONFIG if calibration is None else CALIBRATION)
    for _ in WorkShare(work.path, ["write"], lambda _: last.is_file()):
        with written_whole(work.path / WEIGHTS) as temporary:
            save_file(source.tensors, temporary, metadata={"format": "pt"})
        if earlier:
            write_json(work.path / PROVENANCE, earlier)
        write_json(work.path / CONFIG, native_fields(source))
        compare(work.path, source)
        if calibration is not None:
            move_calibration(calibration, work.path)
    parameters = sum(value.numel() for value in source.tensors.values())
    return commit_once(store, work, lambda: {"parameters": parameters})
