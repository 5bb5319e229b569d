"""``stage=evaluate``: speculative decoding on benchmarks -> a versioned evaluation.

A unit of work is one chunk of prompts of one benchmark, written as one Parquet file; ranks share the units,
and an evaluation that was killed goes on with those that are missing. Held-out prompts for the calibration come
before, and answers that a threshold of the sweep changes after; they are units of work like the others.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from data_specs.calibration import draft_contents, read_calibration
from data_specs.evaluation import (
    HELDOUT_ROUNDS,
    ROUNDS,
    SCHEMA_VERSION,
    SWEEP_ROUNDS,
    EvaluationError,
    read_rounds,
    write_rounds,
)
from data_specs.manifest import MANIFEST, file_record, fingerprint, folder_records, read_json
from data_specs.study import RESULT as STUDY_RESULT
from pipeline import console
from pipeline.artifacts import Artifact, Store, Work
from pipeline.config import Config, ConfigError, section
from pipeline.drafts.checkpoint import load, read_config
from pipeline.drafts.model import Model
from pipeline.drafts.registry import head_rows
from pipeline.html.evaluation import in_the_making
from pipeline.html.lineage import made_of_draft
from pipeline.html.page import write_html
from pipeline.ranks import is_main
from pipeline.sampling import Sampler
from pipeline.target import Target
from pipeline.target_files import TargetTensors, identity, load_tensors, load_tokenizer, locate
from pipeline.tracking import Tracker
from pipeline.work import WorkShare, commit_once
from stages.evaluate import batch, calibrate, profiling, sweeping
from stages.evaluate.benchmarks import FOLDER, Benchmark, Prompt, load_benchmark, load_prompts
from stages.evaluate.confidence import observe
from stages.evaluate.dialogue import Speaker
from stages.evaluate.heldout import heldout_prompts
from stages.evaluate.report import SUMMARY, Facts, flat_metrics, show, write_report

KIND = "evaluation"
FILES = (
    f"{ROUNDS}/*.parquet", f"{HELDOUT_ROUNDS}/*.parquet", f"{SWEEP_ROUNDS}/*/*.parquet", "*.json", "*.md", "*.html",
    "*.png",
)  # fmt: skip
# Settings that change how the work is done and shown, not what is measured.
INCIDENTAL = ("chunk_prompts", "bootstrap")
PROFILED = ("profile_tokens", "profile_contexts", "profile_repeats")
# Settings that stand in the fingerprint in another form: by contents, as part of the calibration's own, or not at all.
ELSEWHERE = ("files", "calibrate", "calibration_prompts", *PROFILED)
BYTES_A_ROUND = 40  # of a compressed round table, measured


@dataclass(frozen=True)
class Job:
    """What is asked for, known before any prompt is read or model is loaded."""

    draft: Path
    name: str
    parents: dict[str, str]
    benchmarks: list[Benchmark]
    sampler: Sampler
    calibration: calibrate.Plan | None
    fingerprint: str


def run_evaluate(config: Config, store: Store, draft: Artifact | Path) -> Artifact | None:
    """Evaluate ``draft`` (an artifact, or a folder in the native layout) on the configured benchmarks.

    Returns the evaluation, which may be one that was made before; None with ``plan``. Raises ``ConfigError``
    for a draft that does not fit the target, and for benchmarks and settings that cannot be.
    """
    if isinstance(draft, Artifact):
        draft.verify()
    job = make_job(config, draft)
    if (found := store.find(KIND, job.fingerprint)) is None:
        prompts = selected_prompts(config, job.benchmarks)
        if config.plan:
            _show_plan(config, job, prompts, store.root)
            return None
        # Another rank may have done it all while this one read its prompts.
        if (found := store.find(KIND, job.fingerprint)) is None:
            return _evaluate(config, store, draft, job, prompts)
    if is_main():
        console.say(f"evaluation of {job.name} is already there: {found.reference} ({found.path})")
        if job.calibration is not None:
            calibrate.restore(job.calibration, found.path, read_json(found.path / SUMMARY)["positions"])
        show(found)
    return found


def make_job(config: Config, draft: Artifact | Path) -> Job:
    """Check the settings and identify the evaluation by draft, target, benchmarks and settings."""
    settings = section(config.evaluate)
    sampler = Sampler(**{name: settings[name] for name in ("temperature", "top_p", "top_k", "min_p")})
    check_settings(config)
    benchmarks = [load_benchmark(name) for name in config.evaluate.benchmarks]
    folder, name, made_of = identify(draft)
    check_thinking(config, draft)
    target = identity(locate(config.target))
    calibration = calibrate.make_plan(config, draft, folder, sampler, target)
    parts = [
        SCHEMA_VERSION, made_of, target, config.target.dtype, config.target.thinking,
        config.seed, {key: value for key, value in settings.items() if key not in (*INCIDENTAL, *ELSEWHERE)},
        [asdict(b) for b in benchmarks], [content_of(config, b) for b in benchmarks],
        calibration and calibration.made_with,
        [settings[name] for name in PROFILED] if config.profile else None,
    ]  # fmt: skip
    return Job(folder, name, {"draft": made_of}, benchmarks, sampler, calibration, fingerprint(*parts))


def check_fit(folder: Path, tensors: TargetTensors) -> None:
    """Raise ``ConfigError`` naming the field in which the draft at ``folder`` does not fit the target."""
    config = read_config(folder)
    rows, hidden = tensors.embedding.shape
    for field, expected in (("hidden_size", hidden), ("vocab_size", rows)):
        got = getattr(config, field)
        if got != expected:
            raise ConfigError(
                f"draft={folder}: {field}: the target {tensors.folder} has {expected}, the draft {got}"
            )
    layers = tensors.config.num_hidden_layers
    if max(config.target_layer_ids, default=0) >= layers:
        taps = list(config.target_layer_ids)
        raise ConfigError(
            f"draft={folder}: target_layer_ids: {taps}, but {tensors.folder} has {layers} layers"
        )


def identify(draft: Artifact | Path) -> tuple[Path, str, str]:
    """(folder, name, fingerprint) of a draft; a foreign folder's is that of its contents. An export has its name."""
    if isinstance(draft, Artifact):
        return draft.path, draft.manifest.name, draft.manifest.fingerprint
    read_config(draft)
    folder = draft.resolve()  # of an export: .../NAME/v0
    own = folder.parent.name if (folder / MANIFEST).is_file() else folder.name
    name = re.sub(r"[^A-Za-z0-9._-]", "-", own).lstrip("._-") or "draft"
    return draft, name, draft_contents(draft)


def check_settings(config: Config) -> None:
    """Raise ``ConfigError`` naming the key of ``evaluate`` that cannot be."""
    settings = config.evaluate
    if not settings.benchmarks:
        raise ConfigError("evaluate.benchmarks: expected at least one, got none")
    if len(set(settings.benchmarks)) != len(settings.benchmarks):
        raise ConfigError(f"evaluate.benchmarks={settings.benchmarks}: expected each one once")
    for name, least in (("max_new_tokens", 1), ("chunk_prompts", 1), ("bootstrap", 0)):
        if getattr(settings, name) < least:
            raise ConfigError(f"evaluate.{name}={getattr(settings, name)}: expected at least {least}")
    if settings.prompts is not None and settings.prompts < 1:
        raise ConfigError(f"evaluate.prompts={settings.prompts}: expected at least 1")
    if not 0 <= settings.threshold <= 1:
        raise ConfigError(f"evaluate.threshold={settings.threshold}: expected a number from 0 to 1")


def check_thinking(config: Config, draft: Artifact | Path) -> None:
    """A draft trained in one thinking mode is not measured in the other (pitfall 4)."""
    trained = draft.manifest.config.get("target", {}) if isinstance(draft, Artifact) else {}
    thinking = config.target.thinking
    if trained.get("thinking", thinking) != thinking:
        raise ConfigError(
            f"target.thinking={thinking}: the draft was trained with thinking={trained['thinking']}"
        )


def content_of(config: Config, benchmark: Benchmark) -> Any:
    """Checksum of the local file or folder that the prompts come from; None for the Hub."""
    given = config.evaluate.files.get(benchmark.name)
    path = Path(given).expanduser() if given else FOLDER / benchmark.path
    if path.is_file():
        return file_record(path).sha256
    return {name: record.sha256 for name, record in folder_records(path).items()} if path.is_dir() else None


def selected_prompts(config: Config, benchmarks: list[Benchmark]) -> dict[str, list[Prompt]]:
    """Benchmark -> its prompts; see ``load_prompts`` for the errors."""
    files, limit = config.evaluate.files, config.evaluate.prompts
    return {b.name: load_prompts(b, files.get(b.name), limit) for b in benchmarks}


def _speaker(config: Config, job: Job) -> Speaker:
    """Target and draft, loaded after the cheap check that they fit."""
    tensors = load_tensors(config.target)
    check_fit(job.draft, tensors)
    if config.evaluate.threshold > 0 and not read_config(job.draft).enable_confidence_head:
        raise ConfigError(
            f"evaluate.threshold={config.evaluate.threshold}: {job.draft} has no confidence head"
        )
    draft = load(job.draft, tensors)
    _compare_head(draft, tensors)
    # A draft without taps (MTP) reads final states only; the target's default taps do no harm.
    target = Target.load(config.target, list(draft.config.target_layer_ids) or None)
    return Speaker(
        target=target,
        draft=draft.to(device=target.device, dtype=target.dtype),
        tokenizer=load_tokenizer(target.folder, config.target),
        sampler=job.sampler,
        max_new_tokens=config.evaluate.max_new_tokens,
        threshold=config.evaluate.threshold,
        baseline=config.evaluate.baseline,
        thinking=config.target.thinking,
        seed=config.seed,
        batch=config.evaluate.batch,
    )


def _compare_head(draft: Model, tensors: TargetTensors) -> None:
    """Say so where the draft's embedding or head is not the target's (pitfall 25): engines use the target's."""
    own = dict(draft.named_parameters())
    head = head_rows(draft, tensors.head)
    for name, theirs in (("embed_tokens.weight", tensors.embedding), ("lm_head.weight", head)):
        if not torch.equal(own[name].to(theirs.dtype), theirs):
            console.say(
                f"warning: {name} of the draft is not the target's: was it trained for another target?"
            )


def _evaluate(
    config: Config, store: Store, draft: Artifact | Path, job: Job, prompts: dict[str, list[Prompt]]
) -> Artifact:
    recorded: dict[str, Any] = {name: section(getattr(config, name)) for name in ("target", "evaluate")}
    recorded |= {"seed": config.seed, "sampler": job.sampler.effective()}
    work = store.begin(KIND, job.name, SCHEMA_VERSION, job.fingerprint, job.parents, recorded)
    for part in (ROUNDS, *_more_rounds(config, job)):
        (work.path / part).mkdir(exist_ok=True)
    speaker = _speaker(config, job)
    with _unless_committed(work):
        _decode(config, work, job, speaker, prompts)
    facts = _facts(config, job, speaker, prompts)
    positions = speaker.draft.max_drafts

    def finish() -> dict[str, Any]:
        for left in work.path.glob(f"{ROUNDS}/.*.tmp"):  # of killed runs
            left.unlink()
        sections = _sections(config, work, job, speaker)
        result = write_report(work.path, facts, positions, config.evaluate.bootstrap, sections)
        studies = made_of_draft(store, "study", work.parents["draft"])
        study = read_json(studies[0].path / STUDY_RESULT) if studies else None
        write_html(work.path, [in_the_making(work, result, store)], study)
        return counts_of(result)

    artifact = commit_once(store, work, finish, FILES)
    if is_main():
        track(config, store, artifact, {"draft": draft} if isinstance(draft, Artifact) else {})
        show(artifact)
    return artifact


def _more_rounds(config: Config, job: Job) -> list[str]:
    """Folders of rounds beside those of the benchmarks."""
    return [HELDOUT_ROUNDS] * (job.calibration is not None) + sweeping.folders() * config.evaluate.sweep


@contextmanager
def _unless_committed(work: Work) -> Iterator[None]:
    """Breaks off quietly where another rank has renamed the working folder to the finished evaluation."""
    try:
        yield
    except (FileNotFoundError, EvaluationError):
        if work.path.is_dir():
            raise


def _decode(config: Config, work: Work, job: Job, speaker: Speaker, prompts: dict[str, list[Prompt]]) -> None:
    """Every round of the evaluation, and the calibration that it needs, in the working folder."""

    def answer(part: str, speaker: Speaker, prompts: dict[str, list[Prompt]]) -> None:
        _answer(config, work, part, speaker, prompts)

    if job.calibration is not None:
        reported = {prompt.key for listed in prompts.values() for prompt in listed}
        made = calibrate.obtain(config, job.calibration, work.path, speaker, reported, answer)
        speaker = calibrate.calibrated(speaker, made)
    answer(ROUNDS, speaker, prompts)
    if config.evaluate.sweep:
        sweeping.decode_changed(work.path, speaker, prompts, answer)


def _sections(config: Config, work: Work, job: Job, speaker: Speaker) -> dict[str, Any]:
    """Calibration and sweep as summary.json holds them, from the files in the working folder."""
    rounds = read_rounds(work.path)
    sections: dict[str, Any] = {}
    if speaker.draft.config.enable_confidence_head:
        observe(rounds, speaker.draft.max_drafts)  # no evaluation holds confidences that are none
    if job.calibration is not None:
        made = read_calibration(work.path, job.calibration.draft, speaker.draft.max_drafts)
        speaker = calibrate.calibrated(speaker, made)
        sections["calibration"] = calibrate.summary(made, rounds)
    if config.evaluate.sweep:
        sections["sweep"] = sweeping.section(work.path, speaker)
    if config.profile:
        sections["profile"] = profiling.obtain(work.path, speaker, config.evaluate, config.target.name)
    return sections


def _answer(
    config: Config, work: Work, part: str, speaker: Speaker, prompts: dict[str, list[Prompt]]
) -> None:
    """Answer the chunks of ``prompts`` that fall to this process into the folder ``part``, until all are there."""
    size = config.evaluate.chunk_prompts
    if speaker.batch > 1:  # more than one wave of a batch: the last one of a chunk empties slowly
        size = max(size, 2 * speaker.batch)
    units = chunks(prompts, size)
    rounds = work.path / part

    def is_done(unit: str) -> bool:
        """Without the folder all is done: another rank has committed it under its final name."""
        return (rounds / f"{unit}.parquet").is_file() or not rounds.is_dir()

    share = WorkShare(work.path, list(units), is_done)
    left = share.remaining
    if not left:
        return
    title = f"evaluate {work.name}" if part == ROUNDS else f"evaluate {work.name} ({part})"
    if is_main() and len(left) < len(units):
        console.say(f"{title}: {len(units) - len(left)} of {len(units)} chunks are there already")
    if part == ROUNDS:  # only these are timed
        speaker.warm_up(units[left[0]][0])
        if speaker.batch > 1:
            batch.warm_up(speaker, units[left[0]])
    with console.progress(title, sum(len(units[u]) for u in left), is_main()) as bar:
        for unit in share:
            rows = _rows(speaker, units[unit], lambda prompt: bar.advance(1, prompt.benchmark))
            write_rounds(rounds / f"{unit}.parquet", rows)


def _rows(speaker: Speaker, prompts: list[Prompt], advance: Callable[[Prompt], None]) -> list[dict[str, Any]]:
    """Rows of the round table of ``prompts``, one at a time or several."""
    if speaker.batch > 1:
        return batch.answer_together(speaker, prompts, advance)
    rows = []
    for prompt in prompts:
        rows += speaker.answer(prompt)
        advance(prompt)
    return rows


def chunks(prompts: dict[str, list[Prompt]], size: int) -> dict[str, list[Prompt]]:
    """Units of work ``<benchmark>-<number>``: at most ``size`` prompts of one benchmark each."""
    return {
        f"{name}-{start // size:05d}": listed[start : start + size]
        for name, listed in prompts.items()
        for start in range(0, len(listed), size)
    }


def _facts(config: Config, job: Job, speaker: Speaker, prompts: dict[str, list[Prompt]]) -> Facts:
    return Facts(
        draft=job.name,
        target=config.target.name,
        sampler=job.sampler.effective(),
        threshold=config.evaluate.threshold,
        max_new_tokens=config.evaluate.max_new_tokens,
        thinking=config.target.thinking,
        device=str(speaker.target.device),
        dtype=config.target.dtype,
        prompts={name: len(listed) for name, listed in prompts.items()},
        batch=config.evaluate.batch,
    )


def counts_of(result: dict[str, Any]) -> dict[str, Any]:
    """What the manifest says: totals over benchmarks, and the macro-averaged figures."""
    benchmarks = result["benchmarks"].values()
    names = ("prompts", "answers", "rounds", "tokens", "too_long")
    counts: dict[str, Any] = {name: sum(b["counts"].get(name, 0) for b in benchmarks) for name in names}
    macro = result["macro"] or {}
    return counts | {name: macro[name]["value"] for name in ("accepted_length", "speedup") if name in macro}


def track(config: Config, store: Store, artifact: Artifact, used: dict[str, Artifact]) -> None:
    """Send the figures to the tracker; the artifact itself is the record. ``used``: role -> what it was made from."""
    manifest = artifact.manifest
    figures = flat_metrics(read_json(artifact.path / SUMMARY))
    with tempfile.TemporaryDirectory() as state:  # one step, sent once: nothing to go on from
        tracker = Tracker(
            config.tracking,
            store.root,
            Path(state),
            manifest.fingerprint[:16],
            artifact.reference,
            manifest.config,
        )
        tracker.log(0, figures)
        tracker.artifact(artifact, used)
        tracker.finish()


def _show_plan(config: Config, job: Job, prompts: dict[str, list[Prompt]], root: Path) -> None:
    """Prompts, tokens, bytes and time; the time from a few tokens decoded now."""
    speaker = _speaker(config, job)
    every = [prompt for listed in prompts.values() for prompt in listed]
    seconds = speaker.warm_up(every[0])
    rows, total = [], 0
    if job.calibration is not None:
        reported = {prompt.key for prompt in every}
        asked_for = heldout_prompts(config.data, config.evaluate.calibration_prompts, reported)
        prompts = prompts | {"calibration (held out)": asked_for}
    for name, listed in prompts.items():
        asked = sum(len(speaker.first_turn(prompt)) for prompt in listed)
        turns = sum(m["role"] == "user" for prompt in listed for m in prompt.messages)
        new = turns * config.evaluate.max_new_tokens
        total += new
        rows.append((name, len(listed), turns, f"{asked:,}", f"{new:,}"))
    columns = ("benchmark", "prompts", "answers", "prompt tokens (first turn)", "new tokens, at most")
    console.table(f"Plan: evaluate {job.name} on {config.target.name}", columns, rows)
    ways = 2 if config.evaluate.baseline else 1
    free = shutil.disk_usage(next(p for p in (root, *root.absolute().parents) if p.exists())).free
    if config.evaluate.sweep:
        console.say("evaluate.sweep decodes again what a threshold changes: up to nine times the benchmarks.")
    console.say(
        f"At {1000 * seconds:.0f} ms a token {console.duration(total * ways * seconds)} at most on one rank, "
        f"{console.size(total * ways * BYTES_A_ROUND)} at most, {console.size(free)} free. Nothing was done."
    )
