"""``stage=study``: a draft under load, policies against concurrency -> a versioned study.

A unit of work is one point (policy, concurrency, repeat), written as two Parquet files; a study that was killed goes on
with the points that are missing. Simulations are made from what was recorded, at the end: a study that differs from one
that is there in these only takes over its points.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from data_specs import sps
from data_specs.manifest import fingerprint
from data_specs.results.study import StudyFacts, StudyResult
from data_specs.results.summary import CalibrationEffect, read_summary
from data_specs.sps import SpsTable
from data_specs.study import (
    AFTER,
    BEFORE,
    POINT,
    POOL,
    POOL_SCHEMA,
    SCHEMA_VERSION,
    STEP_SCHEMA,
    STEPS,
    TIME_SCHEMA,
    TIMES,
    StudyError,
    read_rows,
    write_rows,
)
from pipeline import console
from pipeline.config import Config, StudyConfig, section
from pipeline.decoding.job import EvaluationJob, make_job
from pipeline.decoding.steps import Step, Times
from pipeline.drafts.folders.checkpoint import read_config
from pipeline.ranks import is_main
from pipeline.report.evaluation import Evaluation, committed
from pipeline.store.artifacts import Artifact, Store, Work
from pipeline.store.lineage import made_of_draft
from pipeline.store.work import WorkShare, commit_once
from pipeline.target.files import device_of
from stages.study.costs import from_steps
from stages.study.measure import InProcessServer, MeasuredPoint, temperatures_of
from stages.study.points import CONFIDENT, Arm, StudyPoint, arms, points, request_count
from stages.study.report import show, write_report
from stages.study.result import Recording, result_of, simulated_count
from stages.study.simulation import RecordedAnswer

KIND = "study"
FILES = (f"{STEPS}/*.parquet", f"{TIMES}/*.parquet", POOL, "*.json", "*.md", "*.html", "*.png")
RECORD = "pool"  # the unit of work that records the pool
SIMULATED = ("simulate", "sps", "simulated_concurrencies", "simulated_requests_per_slot", "simulated_prefill_tokens",
             "arrivals", "sla")  # fmt: skip


@dataclass(frozen=True)
class StudyPlan:
    """What is to be measured and simulated, known before any model is loaded.

    ``measured`` identifies what is served, ``fingerprint`` all of the study.
    """

    job: EvaluationJob
    arms: list[Arm]
    points: list[StudyPoint]
    drafts: int
    temperatures: list[float] | None
    tables: list[SpsTable]
    measured: str
    fingerprint: str


def run_study(config: Config, store: Store, draft: Artifact | Path) -> Artifact | None:
    """Measure and simulate ``draft`` (an artifact, or a folder in the native layout) under load.

    Returns the study, which may be one that was made before; None with ``plan``. Raises ``UserError`` for policies that
    the draft cannot have, a missing calibration, and SPS tables that are too short.
    """
    if isinstance(draft, Artifact):
        draft.verify()
    plan = make_plan(config, store, draft)
    if config.plan:
        show_plan(config, plan)
        return None
    found = store.find(KIND, plan.fingerprint)
    if found is not None and is_main():
        console.say(f"study of {plan.job.name} is already there: {found.reference} ({found.path})")
    artifact = found or _study(config, store, plan)
    if is_main():
        show(artifact, _judged(store, plan))
    return artifact


def make_plan(config: Config, store: Store, draft: Artifact | Path) -> StudyPlan:
    """Check the settings against the draft and the tables, and identify the study."""
    study = config.study
    # Settings of ``evaluate`` that a study ignores must not change its fingerprint.
    settings = dataclasses.replace(
        config.evaluate, calibrate=False, sweep=False, max_new_tokens=study.max_new_tokens, threshold=0.0,
        baseline=False, profile=False,
    )  # fmt: skip
    job = make_job(dataclasses.replace(config, evaluate=settings), draft)
    model = read_config(job.draft)
    drafts = model.block_size - (0 if model.sample_from_anchor else 1)
    chosen = arms(study.policies, drafts, study.threshold)
    confident = [arm.name for arm in chosen if arm.name in CONFIDENT]
    if confident and not model.enable_confidence_head:
        if not study.in_chain:
            raise StudyError(
                f"study.policies: {confident[0]} needs a confidence head, which {job.draft} does not have"
            )
        console.say(f"study: without {', '.join(confident)}: the draft has no confidence head")
        chosen, confident = [arm for arm in chosen if arm.name not in CONFIDENT], []
    temperatures = temperatures_of(config, store, job, drafts) if confident else None
    tables = read_tables(study, drafts)
    told = {name: value for name, value in section(study).items() if name not in SIMULATED}
    measured = fingerprint(SCHEMA_VERSION, job.fingerprint, told, temperatures)
    simulated = {name: getattr(study, name) for name in SIMULATED}
    whole = fingerprint(measured, simulated, [asdict(table) for table in tables])
    return StudyPlan(job, chosen, points(study, chosen), drafts, temperatures, tables, measured, whole)


def read_tables(study: StudyConfig, drafts: int) -> list[SpsTable]:
    """The tables that are simulated with; ``UserError`` for one that is absent or too short for G = ``drafts``."""
    tables = [sps.read_table(sps.locate(name)) for name in study.sps] if study.simulate else []
    for table in tables:
        most = max(study.simulated_concurrencies)
        table.check_covers(max(most * (drafts + 1), study.simulated_prefill_tokens), most)
    return tables


def _study(config: Config, store: Store, plan: StudyPlan) -> Artifact:
    job = plan.job
    recorded: dict[str, Any] = {
        name: section(getattr(config, name)) for name in ("target", "evaluate", "study")
    }
    recorded |= {"seed": config.seed, "sampler": job.sampler.effective(), "measured": plan.measured}
    work = store.begin(KIND, job.name, SCHEMA_VERSION, plan.fingerprint, job.parents, recorded)
    for name in (STEPS, TIMES):
        (work.path / name).mkdir(exist_ok=True)
    _take_over(store, plan, work.path)
    _measure(config, plan, work)

    def finish() -> dict[str, Any]:
        count = len(plan.tables) * simulated_count(config.study, plan.arms, plan.drafts)
        found = Recording(read_points(work.path, plan.points), read_pool(work.path))
        with console.progress("study: simulating", count, is_main()) as bar:
            result = result_of(
                found,
                config.study,
                _facts(config, plan, len(found.answers)),
                plan.arms,
                plan.tables,
                lambda name: bar.advance(1, name),
            )
        write_report(work.path, result, _evaluated(store, job))
        return _counts(result)

    return commit_once(store, work, finish, FILES)


def _evaluated(store: Store, job: EvaluationJob) -> list[Evaluation]:
    """The latest evaluation of the draft, which the page shows too; none where there is no such."""
    return [committed(one, store) for one in made_of_draft(store, "evaluation", job.parents["draft"])[:1]]


def _judged(store: Store, plan: StudyPlan) -> CalibrationEffect | None:
    """What the latest evaluation of the draft with the study's temperatures says of them; None where none has them."""
    for one in made_of_draft(store, "evaluation", plan.job.parents["draft"]):
        calibration = read_summary(one.path).calibration
        if calibration and calibration.temperatures == plan.temperatures:
            return calibration
    return None


def _take_over(store: Store, plan: StudyPlan, folder: Path) -> None:
    """Copy what an earlier study has measured with the same settings."""
    for artifact in reversed(store.list(KIND)):
        if artifact.manifest.config.get("measured") == plan.measured:
            for name in (f"{STEPS}/*", POOL, f"{TIMES}/*"):  # times last: a unit is done when they are there
                for path in sorted(artifact.path.glob(name)):
                    if not (folder / path.relative_to(artifact.path)).exists():
                        shutil.copy(path, folder / path.relative_to(artifact.path))
            console.say(f"what was measured for {artifact.reference} is taken over")
            return


def _measure(config: Config, plan: StudyPlan, work: Work) -> None:
    """Serve the points that fall to this process, and record the pool, until all is there."""
    units = {point.unit: point for point in plan.points}

    def is_done(unit: str) -> bool:
        """Without the folder all is done: another process has committed it under its final name."""
        path = work.path / POOL if unit == RECORD else work.path / TIMES / f"{unit}.parquet"
        return path.is_file() or not (work.path / TIMES).is_dir()

    share = WorkShare(work.path, [RECORD, *units] if config.study.simulate else list(units), is_done)
    left = share.remaining
    if not left:
        return
    if is_main() and len(left) < len(share.units):
        console.say(f"study of {work.name}: {share.done} of {len(share.units)} points are there already")
    server = InProcessServer.load(config, plan.job, plan.temperatures)
    server.warm_up()
    with console.progress(f"study of {work.name}", len(left), is_main()) as bar:
        for unit in share:
            if unit == RECORD:
                answers = server.record(max(config.study.concurrencies), lambda _: None)
                if not share.is_lost:
                    write_rows(work.path / POOL, pool_rows(answers), POOL_SCHEMA)
            else:
                count = request_count(config.study, units[unit].concurrency)
                measured = server.measure(units[unit], count, config.study.simulate)
                if not share.is_lost:
                    write_point(work.path, unit, measured)
            bar.advance(1, unit)


# --- files ------------------------------------------------------------------------------------------------


def write_point(folder: Path, unit: str, measured: MeasuredPoint) -> None:
    """The two files of a unit."""
    parts = {BEFORE: measured.before, POINT: measured.steps, AFTER: measured.after}
    steps = [{"part": part} | asdict(step) for part, steps in parts.items() for step in steps]
    write_rows(folder / STEPS / f"{unit}.parquet", steps, STEP_SCHEMA)
    write_rows(folder / TIMES / f"{unit}.parquet", [asdict(t) for t in measured.times], TIME_SCHEMA)


def read_points(folder: Path, asked: Sequence[StudyPoint]) -> dict[StudyPoint, MeasuredPoint]:
    """What ``write_point`` wrote for the points ``asked``; raises ``StudyError`` naming a damaged file."""
    found = {}
    for point in asked:
        steps: dict[str, list[Step]] = {BEFORE: [], POINT: [], AFTER: []}
        for row in read_rows(folder / STEPS / f"{point.unit}.parquet", STEP_SCHEMA):
            steps[row.pop("part")].append(Step(**row))
        times = [Times(**row) for row in read_rows(folder / TIMES / f"{point.unit}.parquet", TIME_SCHEMA)]
        found[point] = MeasuredPoint(steps[BEFORE], steps[POINT], times, steps[AFTER])
    return found


def pool_rows(answers: Sequence[RecordedAnswer]) -> list[dict[str, Any]]:
    """Rows of data_specs/study.POOL_SCHEMA."""
    rows = []
    for number, answer in enumerate(answers):
        common = {"answer": number, "prompt": answer.prompt, "limit": answer.limit}
        pairs = zip(answer.held.tolist(), answer.confidences.tolist(), strict=True)
        rows += [common | {"held": held, "confidences": told} for held, told in pairs] or [
            common | {"held": None, "confidences": [0.0] * answer.confidences.shape[1]}
        ]
    return rows


def read_pool(folder: Path) -> list[RecordedAnswer]:
    """What ``pool_rows`` made of the answers; none where nothing was recorded."""
    if not (folder / POOL).is_file():
        return []
    grouped: dict[int, list[dict[str, Any]]] = {}
    for row in read_rows(folder / POOL, POOL_SCHEMA):
        grouped.setdefault(row["answer"], []).append(row)
    answers = []
    for rows in grouped.values():
        kept = [row for row in rows if row["held"] is not None]
        confidences = np.array([row["confidences"] for row in kept]).reshape(-1, len(rows[0]["confidences"]))
        held = np.array([row["held"] for row in kept], dtype=np.int64)
        answers.append(RecordedAnswer(rows[0]["prompt"], rows[0]["limit"], confidences, held))
    return answers


def _facts(config: Config, plan: StudyPlan, prompts: int) -> StudyFacts:
    return StudyFacts(
        draft=plan.job.name,
        target=config.target.name,
        sampler=plan.job.sampler.effective(),
        benchmarks=list(config.evaluate.benchmarks),
        max_new_tokens=config.study.max_new_tokens,
        device=str(device_of(config.target)),
        dtype=config.target.dtype,
        calibrated=plan.temperatures is not None,
        drafts=plan.drafts,
        policies=[arm.name for arm in plan.arms],
        threshold=config.study.threshold,
        seed=config.seed,
        notes={table.name: table.note for table in plan.tables},
        prompts=prompts,
    )


def _counts(result: StudyResult) -> dict[str, Any]:
    """What the manifest says: how much was measured and simulated, and how far predictions were off at most."""
    errors = [abs(row.error) for row in result.prediction]
    return {
        "points": len(result.real),
        "simulated_points": len(result.simulated),
        "largest_error": max(errors) if errors else None,
    }


# --- plan -------------------------------------------------------------------------------------------------


def show_plan(config: Config, plan: StudyPlan) -> None:
    """Points, tokens, and time at most: by the steps of a short run now, were every point decoded plainly."""
    study = config.study
    server = InProcessServer.load(config, plan.job, plan.temperatures)
    server.warm_up()
    rows, seconds = [], 0.0
    for concurrency in study.concurrencies:
        steps = server.time_steps(concurrency)
        costs = from_steps(steps).scaled(fmean(step.pace for step in steps))
        count = request_count(study, concurrency)
        rounds = -(-count // concurrency) * study.max_new_tokens
        each = rounds * float(costs.verify_seconds(concurrency, concurrency, 0))
        timing = sum(s.prefill_seconds + s.draft_seconds + s.verify_seconds for s in steps)
        many = len(plan.arms) * study.repeats
        seconds += many * (each + (timing if study.simulate else 0.0)) + timing
        tokens = many * count * study.max_new_tokens
        rows.append((concurrency, many, count, f"{tokens:,}", console.duration(many * (each + timing))))
    columns = ("concurrency", "points", "requests a point", "new tokens, at most", "time, at most")
    console.table(f"Plan: study of {plan.job.name} on {config.target.name}", columns, rows)
    simulated = len(plan.tables) * simulated_count(study, plan.arms, plan.drafts)
    console.say(
        f"{len(plan.points)} points, about {console.duration(seconds)} at most; {simulated} simulated ones, seconds "
        "each at most. What is there already is not measured again. Nothing was done."
    )
