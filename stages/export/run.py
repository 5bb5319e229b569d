"""``stage=export``: a draft in the layouts that were asked for, each a versioned artifact.

The plan is pure (draft -> config and tensors). What it says is written into a working folder, read back and compared
with the draft bit for bit, searched for paths of this machine, and only then committed.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from data_specs.calibration import CALIBRATION, Calibration, draft_contents, read_calibration
from data_specs.draft import CONFIG, WEIGHTS
from data_specs.export import CARD, DRAFT_GGUF, PROVENANCE, SCHEMA_VERSION
from data_specs.manifest import MANIFEST, Manifest, file_record, fingerprint, folder_records, write_json
from data_specs.results.summary import read_summary
from data_specs.sps import SpsTable, read_table
from pipeline import console
from pipeline.config import Config, ConfigError, ExportConfig, TargetConfig
from pipeline.decoding.profiling import TABLE
from pipeline.drafts.base import FROZEN
from pipeline.ranks import is_main
from pipeline.store.artifacts import Artifact, Store, Work
from pipeline.store.lineage import calibrations
from pipeline.store.work import WorkShare, begin_once, commit_once
from pipeline.target.location import locate
from stages.export import hub, llama_cpp, mlx, sglang, speculators, vllm
from stages.export.capabilities import ExportError, check, refusal
from stages.export.lineage import (
    TargetFacts,
    ancestors,
    carried,
    check_no_paths,
    known_target,
    machine_paths,
    move_calibration,
    provenance,
)
from stages.export.source import DraftSource, EngineLayout, ServeFacts, native_fields, read_source

KIND = "export"
PLANS: dict[str, Callable[[DraftSource], EngineLayout]] = {
    "vllm": vllm.plan, "sglang": sglang.plan, "llama_cpp": llama_cpp.plan, "mlx": mlx.plan, "hub": hub.plan,
}  # fmt: skip
SERVERS: dict[str, hub.Serve] = {**hub.SERVERS, "speculators": speculators.serve}
# What the tensors' shapes do not tell, and what must come back as it was for the same logits.
ALIKE = (
    "attention_k_eq_v", "global_head_dim", "head_dim", "hidden_act", "hidden_activation", "max_position_embeddings",
    "num_attention_heads", "num_global_key_value_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps",
    "rope_parameters",
)  # fmt: skip
WINDOW = ("layer_types", "sliding_window")  # the same, where layers have one


@dataclass(frozen=True)
class ExportJob:
    """One draft to export, and what is known about it."""

    draft: Artifact | Path
    folder: Path
    name: str
    made_of: str  # fingerprint of the draft
    source: DraftSource
    manifests: dict[str, Manifest]
    earlier: dict[str, Any]  # provenance.json that came with the draft
    target: TargetFacts
    calibrated_in: Path | None  # the folder that holds the calibration
    calibration: Calibration | None
    evaluation: Artifact | None
    costs: SpsTable | None  # of its steps, where the evaluation measured them

    @property
    def draft_sampling(self) -> str | None:
        """How it chose tokens when it was evaluated (target | greedy), here or before an import; None if not known."""
        if self.evaluation is None:
            return self.earlier.get("draft_sampling")
        sampler = self.evaluation.manifest.config["sampler"]
        return str(sampler.get("draft_sampling", "target")) if sampler["temperature"] else "greedy"


def run_export(config: Config, store: Store, draft: Artifact | Path) -> list[Artifact]:
    """Export ``draft`` (an artifact, or a folder in any layout that is read) in every format of ``export.formats``.

    Returns the exports, which may be some that were made before; none with ``plan`` and in other processes than the
    first. Raises ``ExportError`` for what a format cannot hold, before anything is written.
    """
    if not is_main():
        return []
    if isinstance(draft, Artifact):
        draft.verify()
    job = make_job(config, store, draft)
    for form in config.export.formats:
        check(form, job.source.facts)
    layouts = {form: plan(form, job) for form in config.export.formats}
    if config.plan:
        _show_plan(job, layouts)
        return []
    made = [_export(config.export, store, job, form, layout) for form, layout in layouts.items()]
    for form, artifact in zip(layouts, made, strict=True):
        _show(job, form, artifact)
        if form == "hub" and config.export.push:
            assert config.export.repo is not None, "pipeline/config/export.py"
            console.say(f"pushed to {hub.push(artifact.path, config.export.repo, config.export.private)}")
    return made


def make_job(config: Config, store: Store, draft: Artifact | Path) -> ExportJob:
    """Read the draft strictly, and find out where it came from; another draft's calibration is refused."""
    folder, name, made_of = identify(draft)
    source, manifests, earlier = read_source(folder), ancestors(store, draft), carried(folder)
    evaluation = _evaluation(store, name, made_of, config.evaluation)
    profile = None if evaluation is None else evaluation.path / TABLE
    kept = calibrations(store, folder, made_of)
    if evaluation is not None and evaluation.path in kept:  # that of the figures on the card
        kept.insert(0, evaluation.path)
    place = kept[0] if kept else None
    return ExportJob(
        draft=draft,
        folder=folder,
        name=name,
        made_of=made_of,
        source=source,
        manifests=manifests,
        earlier=earlier,
        target=known_target(manifests, earlier, config.export.target),
        calibrated_in=place,
        calibration=read_calibration(place, draft_contents(folder), source.facts.drafts) if place else None,
        evaluation=evaluation,
        costs=read_table(profile) if profile is not None and profile.is_file() else None,
    )


def identify(draft: Artifact | Path) -> tuple[Path, str, str]:
    """(folder, name, fingerprint) of a draft; a folder's fingerprint is that of its contents."""
    if isinstance(draft, Artifact):
        return draft.path, draft.manifest.name, draft.manifest.fingerprint
    records = folder_records(draft, (CONFIG, "*.safetensors"))
    name = re.sub(r"[^A-Za-z0-9._-]", "-", draft.resolve().name).lstrip("._-") or "draft"
    return draft, name, fingerprint({path: record.sha256 for path, record in records.items()})


def plan(form: str, job: ExportJob) -> EngineLayout:
    """What ``form`` writes for the draft: config.json and the tensors."""
    if form == "speculators":
        return speculators.plan(job.source, job.target.hub_id, job.target.architectures)
    return PLANS[form](job.source)


def _evaluation(store: Store, name: str, made_of: str, reference: str | None) -> Artifact | None:
    """The evaluation on a card: the one that is named, else the latest of the draft ``name``, made of ``made_of``.

    Raises ``ExportError`` where the one that is named is another draft's.
    """
    if reference is not None:
        named = store.resolve("evaluation", reference)
        parents = named.manifest.parents
        if made_of not in (parents.get("draft"), parents.get("served_draft")):
            raise ExportError(f"evaluation={reference}: {named.reference} is not of the draft {name}")
        return named
    own = [a for a in store.list("evaluation") if a.manifest.parents.get("draft") == made_of]
    return max(own, key=lambda a: a.manifest.created, default=None)


def _export(
    settings: ExportConfig, store: Store, job: ExportJob, form: str, layout: EngineLayout
) -> Artifact:
    """Write one format, or find it made already."""
    name = settings.name or f"{job.name}_{form}"
    recorded = {"format": form, "license": settings.license, "repo": settings.repo if form == "hub" else None}
    recorded |= {"gguf": settings.outtype if form == "llama_cpp" and settings.converter else None}
    recorded |= {"draft_sampling": job.draft_sampling}
    calibration = job.calibrated_in and file_record(job.calibrated_in / CALIBRATION).sha256
    parents = {"draft": job.made_of}
    if form == "hub" and job.evaluation is not None:
        parents["evaluation"] = job.evaluation.manifest.fingerprint
    made_of = fingerprint(
        SCHEMA_VERSION, recorded, parents, dataclasses.asdict(job.target), name,
        calibration, *([job.earlier] if job.earlier else []),
        _schedule(form, job),
    )  # fmt: skip
    if (found := store.find(KIND, made_of)) is not None:
        console.say(f"Reusing the export {found.reference} ({found.path})")
        return found
    work = begin_once(store, KIND, name, SCHEMA_VERSION, made_of, parents, recorded)
    if isinstance(work, Artifact):
        return work
    for _ in WorkShare(work.path, ["write"], lambda _: (work.path / PROVENANCE).is_file()):
        _write(settings, store, job, form, layout, work)
    return commit_once(store, work, lambda: _counts(layout, work.path))


def _write(
    settings: ExportConfig, store: Store, job: ExportJob, form: str, layout: EngineLayout, work: Work
) -> None:
    """All files, provenance.json last: it says that the others are whole."""
    folder = work.path
    if form == "speculators":
        layout = speculators.through_library(layout)
    write_json(folder / CONFIG, layout.config)
    _save_tensors(layout, folder / WEIGHTS)
    compare(folder, job.source)
    if job.calibration is not None:
        move_calibration(job.calibration, folder)
    for name, contents in _schedule(form, job).items():
        write_json(folder / name, contents)
    if form == "llama_cpp" and settings.converter:
        target = _target_folder(settings, job)
        script = llama_cpp.script_at(settings.converter)
        converter = llama_cpp.Converter(script, settings.python or sys.executable, settings.outtype)
        llama_cpp.convert(converter, folder, job.name, target)
    said = provenance(job.draft, job.made_of, job.manifests, job.target, job.earlier)
    said["draft_sampling"] = job.draft_sampling
    if form == "hub":
        (folder / CARD).write_text(hub.card(job.source, _card_facts(settings, job, said)))
    write_json(folder / f".{PROVENANCE}", said)
    own = (store.root, job.folder, settings.converter, settings.target)
    check_no_paths(folder, machine_paths(job.manifests, *own))
    (folder / f".{PROVENANCE}").rename(folder / PROVENANCE)


def _schedule(form: str, job: ExportJob) -> dict[str, dict[str, Any]]:
    """Contents by name of what SGLang's scheduler reads; no other engine has such files."""
    if form != "sglang":
        return {}
    return sglang.schedule_files(job.source.facts, job.calibration, job.costs)


def _save_tensors(layout: EngineLayout, path: Path) -> None:
    """model.safetensors, whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    save_file({n: v.contiguous() for n, v in layout.tensors.items()}, partial, metadata={"format": "pt"})
    partial.replace(path)


def compare(folder: Path, source: DraftSource) -> None:
    """Read the written ``folder`` back and compare it with the draft; ``ExportError`` names what differs.

    Import gives back the draft to the last bit; the target's embedding and head may have stayed behind.
    """
    back = read_source(folder)
    if back.facts != source.facts:
        raise ExportError(
            f"{folder.name}: reads back as another draft: {back.facts}, expected {source.facts}"
        )
    had, has = native_fields(source), native_fields(back)
    alike = ALIKE + WINDOW * source.facts.window + ("mask_token_id",) * source.facts.is_block
    for name in alike:
        if had.get(name) != has.get(name):
            raise ExportError(
                f"{folder.name}: field {name}: reads back as {has.get(name)}, expected {had.get(name)}"
            )
    for name in sorted(source.tensors.keys() | back.tensors.keys()):
        ours, theirs = source.tensors.get(name), back.tensors.get(name)
        if theirs is None and name in FROZEN:
            continue
        if ours is None or theirs is None or ours.dtype != theirs.dtype or not torch.equal(ours, theirs):
            raise ExportError(f"{folder.name}: tensor {name} does not read back as it was")


def _target_folder(settings: ExportConfig, job: ExportJob) -> Path:
    """The folder of the target, whose tokenizer a GGUF file holds."""
    if settings.target and Path(settings.target).expanduser().is_dir():
        return Path(settings.target).expanduser()
    draft = job.manifests.get("draft")
    section = draft.config.get("target") if draft is not None else None
    path = settings.target or (job.target.hub_id if section is None else None)
    if section is None and path is None:
        raise ConfigError(
            "export.target: expected the folder or the Hub id of the target, whose tokenizer GGUF files hold, got none"
        )
    known = {f.name for f in dataclasses.fields(TargetConfig)}
    values = {k: v for k, v in (section or {"name": "target"}).items() if k in known}
    if path is not None:
        values |= {"path": path, "package": None, "gguf": None, "revision": job.target.revision}
    return locate(TargetConfig(**values))


def _card_facts(settings: ExportConfig, job: ExportJob, said: dict[str, Any]) -> hub.CardFacts:
    summary = None if job.evaluation is None else read_summary(job.evaluation.path)
    return hub.CardFacts(
        repo=settings.repo or settings.name or job.name,
        target=job.target,
        provenance=said,
        summary=summary,
        evaluation=None if job.evaluation is None else job.evaluation.manifest,
        calibration=job.calibration,
        license=settings.license,
        serving=ServeFacts(job.draft_sampling),
    )


def _counts(layout: EngineLayout, folder: Path) -> dict[str, Any]:
    return {
        "tensors": len(layout.tensors),
        "parameters": sum(value.numel() for value in layout.tensors.values()),
        # A killed run may leave a manifest and hidden files, which the commit replaces or removes.
        "bytes": sum(path.stat().st_size for path in folder.glob("[!.]*") if path.name != MANIFEST),
    }


def _show_plan(job: ExportJob, layouts: dict[str, EngineLayout]) -> None:
    """Tensors and bytes of every format; nothing is written."""
    rows = []
    for form, layout in layouts.items():
        size = sum(value.numel() * value.element_size() for value in layout.tensors.values())
        rows.append((form, layout.config["architectures"][0], len(layout.tensors), console.size(size)))
    console.table(f"Plan: export {job.name}", ("format", "architecture", "tensors", "size"), rows)
    console.say("Nothing was written.")


def _show(job: ExportJob, form: str, artifact: Artifact) -> None:
    """The last screen: what was made, where, and the commands that serve it (outside the frame, to be copied whole)."""
    lines = [
        f"{form} export of {job.name} for {job.target.hub_id or job.target.name}",
        f"{artifact.reference}   {artifact.path}",
        *(f"  {name:<20} {console.size(record.size)}" for name, record in artifact.manifest.files.items()),
    ]
    console.panel(f"Exported: {artifact.reference}", [_plain(line) for line in lines])
    engines = hub.readers(job.source.facts) if form == "hub" else [form]
    if not engines:
        console.say("No engine reads this draft yet; draftline does: draft=" + _plain(str(artifact.path)))
        return
    if form == "speculators" and (reason := refusal("vllm", job.source.facts)):
        console.say(_plain(f"vLLM, which serves this format, does not serve this draft: {reason}"))
        return
    where = "" if job.target.hub_id else " (TARGET: the folder or Hub id of the target)"
    console.say(f"Serve it{where}:")
    for command in _commands(job, engines[0], artifact):
        console.say(_plain(command))


def _commands(job: ExportJob, engine: str, artifact: Artifact) -> list[str]:
    """What serves the export where it lies; GGUF files that are there need no conversion."""
    known = ServeFacts(job.draft_sampling, artifact.manifest.files)
    if DRAFT_GGUF in artifact.manifest.files:
        return [*llama_cpp.note(known), llama_cpp.serve_converted(job.source.facts, str(artifact.path))]
    return SERVERS[engine](job.source.facts, job.target.shown, str(artifact.path), known)


def _plain(text: str) -> str:
    """``text`` without meaning to the console's markup."""
    return text.replace("[", r"\[")
