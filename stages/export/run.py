"""``stage=export`` makes a versioned artifact of a draft in each of the requested layouts.

A pure function plans config and tensors. They are written into a working folder, read back and compared with the draft
bit for bit, searched for paths of this machine, and then committed.
"""

from __future__ import annotations

import dataclasses
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
from data_specs.files import written_whole
from data_specs.manifest import MANIFEST, Manifest, file_record, fingerprint, folder_records, write_json
from data_specs.results.summary import read_summary
from data_specs.sps import SpsTable, read_table
from pipeline import console
from pipeline.config import Config, ConfigError, ExportConfig, TargetConfig
from pipeline.decoding.profiling import TABLE
from pipeline.drafts.base import FROZEN
from pipeline.ranks import is_main
from pipeline.store.artifacts import Artifact, Store
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
SERVERS: dict[str, hub.Serve] = {**hub.SERVERS, "speculators": vllm.serve}
# Fields that must read back unchanged for equal logits, and that the shapes of the tensors do not show.
ALIKE = (
    "attention_k_eq_v", "global_head_dim", "head_dim", "hidden_act", "hidden_activation", "max_position_embeddings",
    "num_attention_heads", "num_global_key_value_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps",
    "rope_parameters",
)  # fmt: skip
WINDOW = ("layer_types", "sliding_window")  # the same for layers with a window


@dataclass(frozen=True)
class ExportJob:
    """A draft to export, and what is known about it."""

    settings: ExportConfig
    store: Store
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
    costs: SpsTable | None  # of its steps, if the evaluation measured them

    @property
    def draft_sampling(self) -> str | None:
        """How it chose tokens in its evaluation (target | greedy), here or before an import; None if unknown."""
        if self.evaluation is None:
            return self.earlier.get("draft_sampling")
        sampler = self.evaluation.manifest.config["sampler"]
        return str(sampler.get("draft_sampling", "target")) if sampler["temperature"] else "greedy"


def run_export(config: Config, store: Store, draft: Artifact | Path) -> list[Artifact]:
    """Export ``draft`` (an artifact, or a folder in a known layout) in every format of ``export.formats``.

    Returns the exports, of which some may exist already; none with ``plan``, and none in processes other than the
    first. Raises ``ExportError`` before anything is written if a format does not support the draft.
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
    made = [_export(job, form, layout) for form, layout in layouts.items()]
    for form, artifact in zip(layouts, made, strict=True):
        _show(job, form, artifact)
        if form == "hub" and config.export.push:
            assert config.export.repo is not None, "pipeline/config/export.py"
            console.say(f"pushed to {hub.push(artifact.path, config.export.repo, config.export.private)}")
    return made


def make_job(config: Config, store: Store, draft: Artifact | Path) -> ExportJob:
    """Read the draft strictly, and collect its provenance. Raises ``UserError`` for another draft's calibration."""
    folder, name, made_of = identify(draft)
    source, manifests, earlier = read_source(folder), ancestors(store, draft), carried(folder)
    evaluation = _evaluation(store, name, made_of, config.evaluation)
    profile = None if evaluation is None else evaluation.path / TABLE
    kept = calibrations(store, folder, made_of)
    if evaluation is not None and evaluation.path in kept:  # its figures are on the card
        kept.insert(0, evaluation.path)
    place = kept[0] if kept else None
    return ExportJob(
        settings=config.export,
        store=store,
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
    """(folder, name, fingerprint) of a draft. The fingerprint of a folder is that of its contents."""
    if isinstance(draft, Artifact):
        return draft.path, draft.manifest.name, draft.manifest.fingerprint
    records = folder_records(draft, (CONFIG, "*.safetensors"))
    name = re.sub(r"[^A-Za-z0-9._-]", "-", draft.resolve().name).lstrip("._-") or "draft"
    return draft, name, fingerprint({path: record.sha256 for path, record in records.items()})


def plan(form: str, job: ExportJob) -> EngineLayout:
    """The contents of config.json and the tensors that the format ``form`` has for the draft."""
    if form == "speculators":
        return speculators.plan(job.source, job.target.hub_id, job.target.architectures)
    return PLANS[form](job.source)


def _evaluation(store: Store, name: str, made_of: str, reference: str | None) -> Artifact | None:
    """The evaluation for the card: ``reference``, or else the latest of the draft with the fingerprint ``made_of``.

    Raises ``ExportError`` if ``reference`` is an evaluation of another draft.
    """
    if reference is not None:
        named = store.resolve("evaluation", reference)
        parents = named.manifest.parents
        if made_of not in (parents.get("draft"), parents.get("served_draft")):
            raise ExportError(f"evaluation={reference}: {named.reference} is not of the draft {name}")
        return named
    own = [a for a in store.list("evaluation") if a.manifest.parents.get("draft") == made_of]
    return max(own, key=lambda a: a.manifest.created, default=None)


def _export(job: ExportJob, form: str, layout: EngineLayout) -> Artifact:
    """Write one format unless it exists already."""
    settings, store = job.settings, job.store
    name = settings.name or f"{job.name}_{form}"
    recorded = {"format": form, "license": settings.license, "repo": settings.repo if form == "hub" else None}
    recorded |= {"gguf": settings.outtype if form == "llama_cpp" and settings.converter else None}
    recorded |= {"draft_sampling": job.draft_sampling}
    calibration = job.calibrated_in and file_record(job.calibrated_in / CALIBRATION).sha256
    parents = {"draft": job.made_of}
    if form == "hub" and job.evaluation is not None:
        parents["evaluation"] = job.evaluation.manifest.fingerprint
    made_of = fingerprint(
        SCHEMA_VERSION, recorded, parents, dataclasses.asdict(job.target), name, calibration,
        *([job.earlier] if job.earlier else []), _schedule(form, job),
    )  # fmt: skip
    if (found := store.find(KIND, made_of)) is not None:
        console.say(f"Reusing the export {found.reference} ({found.path})")
        return found
    work = begin_once(store, KIND, name, SCHEMA_VERSION, made_of, parents, recorded)
    if isinstance(work, Artifact):
        return work
    for _ in WorkShare(work.path, ["write"], lambda _: (work.path / PROVENANCE).is_file()):
        _write(job, form, layout, work.path)
    return commit_once(store, work, lambda: _counts(layout, work.path))


def _write(job: ExportJob, form: str, layout: EngineLayout, folder: Path) -> None:
    """Write all files. provenance.json is the last one and marks the others as complete."""
    settings = job.settings
    if form == "speculators":
        layout = speculators.through_library(layout)
    write_json(folder / CONFIG, layout.config)
    with written_whole(folder / WEIGHTS) as temporary:
        tensors = {name: value.contiguous() for name, value in layout.tensors.items()}
        save_file(tensors, temporary, metadata={"format": "pt"})
    compare(folder, job.source)
    if job.calibration is not None:
        move_calibration(job.calibration, folder)
    for name, contents in _schedule(form, job).items():
        write_json(folder / name, contents)
    if form == "llama_cpp" and settings.converter:
        script = llama_cpp.script_at(settings.converter)
        converter = llama_cpp.Converter(script, settings.python or sys.executable, settings.outtype)
        llama_cpp.convert(converter, folder, job.name, _target_folder(job))
    said = provenance(job.draft, job.made_of, job.manifests, job.target, job.earlier)
    said["draft_sampling"] = job.draft_sampling
    if form == "hub":
        (folder / CARD).write_text(hub.card(job.source, _card_facts(job, said)))
    write_json(folder / f".{PROVENANCE}", said)
    own = (job.store.root, job.folder, settings.converter, settings.target)
    check_no_paths(folder, machine_paths(job.manifests, *own))
    (folder / f".{PROVENANCE}").rename(folder / PROVENANCE)


def _schedule(form: str, job: ExportJob) -> dict[str, dict[str, Any]]:
    """The files for SGLang's scheduler as name -> contents. Other engines have no such files."""
    if form != "sglang":
        return {}
    return sglang.schedule_files(job.source.facts, job.calibration, job.costs)


def compare(folder: Path, source: DraftSource) -> None:
    """Read the written ``folder`` back and compare it with the draft. ``ExportError`` names the first difference.

    All bits must be equal. Only the target's embedding and head may be missing.
    """
    back = read_source(folder)
    if back.facts != source.facts:
        raise ExportError(f"{folder.name}: expected a draft with {source.facts}, but read back {back.facts}")
    had, has = native_fields(source), native_fields(back)
    alike = ALIKE + WINDOW * source.facts.window + ("mask_token_id",) * source.facts.is_block
    for name in alike:
        if (expected := had.get(name)) != (got := has.get(name)):
            raise ExportError(f"{folder.name}: field {name}: expected {expected}, but read back {got}")
    for name in sorted(source.tensors.keys() | back.tensors.keys()):
        ours, theirs = source.tensors.get(name), back.tensors.get(name)
        if theirs is None and name in FROZEN:
            continue
        if ours is None or theirs is None or ours.dtype != theirs.dtype or not torch.equal(ours, theirs):
            raise ExportError(f"{folder.name}: tensor {name} is not read back unchanged")


def _target_folder(job: ExportJob) -> Path:
    """The folder of the target, whose tokenizer becomes part of the GGUF files."""
    told, draft = job.settings.target, job.manifests.get("draft")
    if told and Path(told).expanduser().is_dir():
        return Path(told).expanduser()
    section = draft.config.get("target") if draft is not None else None
    path = told or (job.target.hub_id if section is None else None)
    if section is None and path is None:
        raise ConfigError("export.target: expected the target's folder or Hub id for its tokenizer, got none")
    known = {f.name for f in dataclasses.fields(TargetConfig)}
    values = {k: v for k, v in (section or {"name": "target"}).items() if k in known}
    if path is not None:
        values |= {"path": path, "package": None, "gguf": None, "revision": job.target.revision}
    return locate(TargetConfig(**values))


def _card_facts(job: ExportJob, said: dict[str, Any]) -> hub.CardFacts:
    return hub.CardFacts(
        repo=job.settings.repo or job.settings.name or job.name,
        target=job.target,
        provenance=said,
        summary=None if job.evaluation is None else read_summary(job.evaluation.path),
        evaluation=None if job.evaluation is None else job.evaluation.manifest,
        calibration=job.calibration,
        license=job.settings.license,
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
    """Print tensors and bytes of every format."""
    rows = []
    for form, layout in layouts.items():
        size = sum(value.numel() * value.element_size() for value in layout.tensors.values())
        rows.append((form, layout.config["architectures"][0], len(layout.tensors), console.size(size)))
    console.table(f"Plan: export {job.name}", ("format", "architecture", "tensors", "size"), rows)
    console.say("Nothing was written.")


def _show(job: ExportJob, form: str, artifact: Artifact) -> None:
    """The last screen: the artifact and the commands that serve it, which have no frame so that they can be copied."""
    lines = [
        f"{form} export of {job.name} for {job.target.hub_id or job.target.name}",
        f"{artifact.reference}   {artifact.path}",
        *(f"  {name:<20} {console.size(record.size)}" for name, record in artifact.manifest.files.items()),
    ]
    console.panel(f"Exported: {artifact.reference}", lines)
    engines = hub.readers(job.source.facts) if form == "hub" else [form]
    if not engines:
        console.say("No engine reads this draft yet; draftline does: draft=" + str(artifact.path))
        return
    if form == "speculators" and (reason := refusal("vllm", job.source.facts)):
        console.say(f"vLLM, which serves this format, does not serve this draft: {reason}")
        return
    where = "" if job.target.hub_id else " (TARGET: the folder or Hub id of the target)"
    console.say(f"Serve it{where}:")
    for command in _commands(job, engines[0], artifact):
        console.say(command)


def _commands(job: ExportJob, engine: str, artifact: Artifact) -> list[str]:
    """The commands that serve the export in its folder. Existing GGUF files need no conversion."""
    known = ServeFacts(job.draft_sampling, artifact.manifest.files)
    if DRAFT_GGUF in artifact.manifest.files:
        return [*llama_cpp.note(known), llama_cpp.serve_converted(job.source.facts, str(artifact.path))]
    return SERVERS[engine](job.source.facts, job.target.shown, str(artifact.path), known)
