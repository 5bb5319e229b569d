"""``stage=evaluate``: speculative decoding on benchmarks -> a versioned evaluation.

A unit of work is one chunk of the prompts of one benchmark, written as one Parquet file. The ranks share the units, and
the rerun of a killed evaluation makes only the missing ones. Before the benchmarks, units answer held-out prompts for
the calibration; after them, units answer again the prompts whose answers a threshold of the sweep changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from data_specs.calibration import read_calibration
from data_specs.evaluation import (
    HELDOUT_ROUNDS,
    ROUNDS,
    SCHEMA_VERSION,
    SWEEP_ROUNDS,
    EvaluationError,
    read_rounds,
    write_rounds,
)
from data_specs.files import free_bytes
from data_specs.results.summary import EvaluationFacts, read_summary
from pipeline import console
from pipeline.confidence.rounds import observe
from pipeline.config import Config, ConfigError, section
from pipeline.decoding import calibrate, dialogues, profiling
from pipeline.decoding.dialogue import RoundRow, Speaker
from pipeline.decoding.job import (
    KIND,
    EvaluationJob,
    check_fit,
    chunks,
    counts_of,
    make_job,
    selected_prompts,
)
from pipeline.decoding.origin import trained_counts, unwanted
from pipeline.drafts.folders.checkpoint import load, read_config
from pipeline.drafts.model import Model
from pipeline.drafts.registry import head_rows
from pipeline.prompts.benchmarks import Prompt
from pipeline.prompts.heldout import TooFewError, heldout_prompts
from pipeline.ranks import is_main
from pipeline.report.summary import flat_metrics, summarise
from pipeline.store.artifacts import Artifact, Store, Work
from pipeline.store.lineage import calibrations
from pipeline.store.tracking import track_figures
from pipeline.store.work import WorkShare, commit_once
from pipeline.target.files import load_tokenizer
from pipeline.target.model import Target
from pipeline.target.tensors import TargetTensors, check_same, load_tensors
from stages.evaluate import sweep
from stages.evaluate.report import show, write_report

FILES = (
    f"{ROUNDS}/*.parquet", f"{HELDOUT_ROUNDS}/*.parquet", f"{SWEEP_ROUNDS}/*/*.parquet", "*.json", "*.md", "*.html",
    "*.png",
)  # fmt: skip
BYTES_A_ROUND = 40  # in a compressed round table, measured


def run_evaluate(config: Config, store: Store, draft: Artifact | Path) -> Artifact | None:
    """Evaluate ``draft`` (an artifact, or a folder in the native layout) on the configured benchmarks.

    Returns the evaluation, new or reused; None with ``plan``. Raises ``ConfigError`` for a draft that does not fit the
    target, and for benchmarks and settings that are not allowed.
    """
    if isinstance(draft, Artifact):
        draft.verify()
    job = make_job(config, draft)
    if (found := store.find(KIND, job.fingerprint)) is None:
        prompts = selected_prompts(config, job.benchmarks)
        if config.plan:
            _show_plan(config, job, prompts, store, draft)
            return None
        # Another rank may have finished the evaluation while this one read its prompts.
        if (found := store.find(KIND, job.fingerprint)) is None:
            return _evaluate(config, store, draft, job, prompts)
    if is_main():
        console.say(f"Reusing the evaluation of {job.name}: {found.reference} ({found.path})")
        show(found)
    if config.evaluate.calibrate and (why := read_summary(found.path).calibration_refused):
        raise TooFewError(why)
    return found


def _speaker(config: Config, job: EvaluationJob) -> Speaker:
    """Load target and draft; the cheap check that they fit comes first."""
    tensors = load_tensors(config.target)
    check_fit(job.draft, tensors)
    if config.evaluate.threshold > 0 and not read_config(job.draft).enable_confidence_head:
        raise ConfigError(
            f"evaluate.threshold={config.evaluate.threshold}: {job.draft} has no confidence head"
        )
    draft = load(job.draft, tensors)
    _compare_head(draft, tensors)
    # A draft without taps (MTP) reads final states only, so it ignores the target's default taps.
    target = Target.load(config.target, list(draft.config.target_layer_ids) or None)
    check_same(target, tensors)
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
    """Warn if the draft's embedding or head differs from the target's (pitfall 25): engines use the target's."""
    own = dict(draft.named_parameters())
    head = head_rows(draft, tensors.head)
    for name, theirs in (("embed_tokens.weight", tensors.embedding), ("lm_head.weight", head)):
        if not torch.equal(own[name].to(theirs.dtype), theirs):
            console.say(f"warning: {name} is not the target's; was the draft trained for another one?")


def _evaluate(
    config: Config, store: Store, draft: Artifact | Path, job: EvaluationJob, prompts: dict[str, list[Prompt]]
) -> Artifact:
    recorded: dict[str, Any] = {name: section(getattr(config, name)) for name in ("target", "evaluate")}
    recorded |= {"seed": config.seed, "sampler": job.sampler.effective()}
    work = store.begin(KIND, job.name, SCHEMA_VERSION, job.fingerprint, job.parents, recorded)
    heldout = [HELDOUT_ROUNDS] if job.calibration is not None else []
    for part in (ROUNDS, *heldout, *(sweep.folders() if config.evaluate.sweep else [])):
        (work.path / part).mkdir(exist_ok=True)
    speaker = _speaker(config, job)
    refused = None
    with _unless_committed(work):
        others = calibrations(store, job.draft, job.parents["draft"]) if job.calibration else []
        refused = _decode(config, work, job, speaker, prompts, others, unwanted(store, draft, prompts))
    facts = _facts(config, store, draft, job, speaker, prompts)

    def finish() -> dict[str, Any]:
        for left in work.path.glob(f"{ROUNDS}/.*.tmp"):  # of killed runs
            left.unlink()
        rounds = read_rounds(work.path)
        sections = _sections(config, work, job, speaker, rounds, refused)
        result = summarise(rounds, facts, speaker.draft.max_drafts, config.evaluate.bootstrap, **sections)
        write_report(work, store, result)
        return counts_of(result)

    artifact = commit_once(store, work, finish, FILES)
    if is_main():
        used = {"draft": draft} if isinstance(draft, Artifact) else {}
        figures = flat_metrics(read_summary(artifact.path))
        track_figures(config.tracking, store.root, artifact, figures, used)
        show(artifact)
    return artifact


@contextmanager
def _unless_committed(work: Work) -> Iterator[None]:
    """Suppress the errors of the block if another rank has committed the evaluation and so moved the working folder."""
    try:
        yield
    except (FileNotFoundError, EvaluationError):
        if work.path.is_dir():
            raise


def _decode(
    config: Config, work: Work, job: EvaluationJob, speaker: Speaker, prompts: dict[str, list[Prompt]],
    others: list[Path], not_these: Collection[str],
) -> str | None:  # fmt: skip
    """Write all rounds of the evaluation, and its calibration, into the working folder.

    ``calibrate.obtain`` explains ``others`` and ``not_these``. Returns the reason if a planned calibration was refused.
    """
    refused = None

    def answer(part: str, speaker: Speaker, prompts: dict[str, list[Prompt]]) -> None:
        _answer(config, work, part, speaker, prompts)

    if job.calibration is not None:
        made = calibrate.obtain(config, job.calibration, work.path, others, speaker, not_these, answer)
        if isinstance(made, str):
            refused = made
        else:
            speaker = calibrate.calibrated(speaker, made)
    answer(ROUNDS, speaker, prompts)
    if config.evaluate.sweep:
        sweep.decode_changed(work.path, speaker, prompts, answer)
    return refused


def _sections(
    config: Config, work: Work, job: EvaluationJob, speaker: Speaker, rounds: pa.Table, refused: str | None
) -> dict[str, Any]:
    """Calibration (or why it was ``refused``), sweep and profile for ``summarise``."""
    sections: dict[str, Any] = {"calibration_refused": refused} if refused else {}
    if speaker.draft.config.enable_confidence_head:
        observe(rounds, speaker.draft.max_drafts)  # raises if a confidence is missing or not a probability
    if job.calibration is not None and not refused:
        made = read_calibration(work.path, job.calibration.draft, speaker.draft.max_drafts)
        speaker = calibrate.calibrated(speaker, made)
        sections["calibration"] = calibrate.effect(made, rounds)
    if config.evaluate.sweep:
        sections["sweep"] = sweep.section(work.path, speaker)
    if config.evaluate.profile:
        sections["profile"] = profiling.obtain(work.path, speaker, config.evaluate, config.target.name)
    return sections


def _answer(
    config: Config, work: Work, part: str, speaker: Speaker, prompts: dict[str, list[Prompt]]
) -> None:
    """Write this process's share of the answers into the folder ``part``; returns when all ranks are done."""
    size = config.evaluate.chunk_prompts
    if (
        speaker.batch > 1
    ):  # at least two batches in a chunk, because the batch is not full at the end of a chunk
        size = max(size, 2 * speaker.batch)
    units = chunks(prompts, size)
    rounds = work.path / part

    def is_done(unit: str) -> bool:
        """If the folder is gone, another rank has committed the evaluation, so every unit counts as done."""
        return (rounds / f"{unit}.parquet").is_file() or not rounds.is_dir()

    share = WorkShare(work.path, list(units), is_done)
    left = share.remaining
    if not left:
        return
    title = f"evaluate {work.name}" if part == ROUNDS else f"evaluate {work.name} ({part})"
    if is_main() and len(left) < len(units):
        console.say(f"{title}: {len(units) - len(left)} of {len(units)} chunks are already answered")
    if part == ROUNDS:  # only the benchmarks are timed
        speaker.warm_up(units[left[0]][0])
        if speaker.batch > 1:
            dialogues.warm_up(speaker, units[left[0]])
    with console.progress(title, sum(len(units[u]) for u in left), is_main()) as bar:
        for unit in share:
            rows = _rows(speaker, units[unit], lambda prompt: bar.advance(1, prompt.benchmark))
            if not share.is_lost:
                write_rounds(rounds / f"{unit}.parquet", rows)


def _rows(speaker: Speaker, prompts: list[Prompt], advance: Callable[[Prompt], None]) -> list[RoundRow]:
    """Rows of the round table of ``prompts``, answered one at a time or in batches."""
    if speaker.batch > 1:
        return dialogues.answer_together(speaker, prompts, advance)
    rows: list[RoundRow] = []
    for prompt in prompts:
        rows += speaker.answer(prompt)
        advance(prompt)
    return rows


def _facts(
    config: Config, store: Store, draft: Artifact | Path, job: EvaluationJob, speaker: Speaker,
    prompts: dict[str, list[Prompt]],
) -> EvaluationFacts:  # fmt: skip
    return EvaluationFacts(
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
        trained=trained_counts(store, draft, prompts),
    )


def _show_plan(
    config: Config, job: EvaluationJob, prompts: dict[str, list[Prompt]], store: Store, draft: Artifact | Path
) -> None:
    """Print prompts, tokens, bytes and the longest time, which is estimated from a few tokens decoded now."""
    speaker = _speaker(config, job)
    every = [prompt for listed in prompts.values() for prompt in listed]
    seconds = speaker.warm_up(every[0])
    rows, total = [], 0
    if job.calibration is not None:
        wanted, not_these = config.evaluate.calibration_prompts, unwanted(store, draft, prompts)
        try:
            asked_for = heldout_prompts(config.data, wanted, not_these)
        except TooFewError as error:
            if config.evaluate.calibrate:
                raise
            console.say(f"not calibrated: {error}", "warning:")
            asked_for = []
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
    free = free_bytes(store.root)
    if config.evaluate.sweep:
        console.say("evaluate.sweep decodes changed answers again: at most nine times the benchmarks.")
    console.say(
        f"This takes at most {console.duration(total * ways * seconds)} on one rank ({1000 * seconds:.0f} ms per "
        f"token) and {console.size(total * ways * BYTES_A_ROUND)}; {console.size(free)} are free. Nothing was done."
    )
