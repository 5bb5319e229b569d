"""``stage=study``: a draft under load, over policies and concurrencies -> a versioned study.

A unit of work is one point (policy, concurrency, repeat), written as two Parquet files. A study that was killed goes on
with the missing points. Simulations run at the end on the recorded points, so a study that differs from an earlier one
only in its simulations copies the points of that one.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from data_specs import sps
from data_specs.manifest import fingerprint
from data_specs.results.study import StudyFacts
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
from pipeline.report.evaluation import committed
from pipeline.store.artifacts import Artifact, Store, Work
from pipeline.store.lineage import made_of_draft
from pipeline.store.work import WorkShare, commit_once
from pipeline.target.files import device_of
from stages.study.costs import from_steps
from stages.study.measure import InProcessServer, MeasuredPoint, temperatures_of
from stages.study.points import CONFIDENT, Arm, StudyPoint, arms, points, request_count
from stages.study.report import show, write_report
from stages.study.result import result_of, simulated_count
from stages.study.simulation import RecordedAnswer

KIND = "study"
FILES = (f"{STEPS}/*.parquet", f"{TIMES}/*.parquet", POOL, "*.json", "*.md", "*.html", "*.png")
RECORD = "pool"  # the unit of work that records the answers for simulations
# The settings of simulations; they do not affect what is measured.
SIMULATED = ("simulate", "sps", "simulated_concurrencies", "simulated_requests_per_slot", "simulated_prefill_tokens",
             "arrivals", "sla")  # fmt: skip


@dataclass(frozen=True)
class StudyPlan:
    """What to measure and to simulate, worked out before any model is loaded."""

    job: EvaluationJob
    arms: list[Arm]
    points: list[StudyPoint]
    drafts: int  # tokens that the draft proposes, at most
    temperatures: list[float] | None
    tables: list[SpsTable]
    measured: str  # fingerprint of the measurements
    fingerprint: str  # of the whole study


def run_study(config: Config, store: Store, draft: Artifact | Path) -> Artifact | None:
    """Measure and simulate ``draft`` (an artifact, or a folder in the native layout) under load.

    Returns the study, new or reused; None with ``plan``. Raises ``UserError`` if the draft cannot serve a policy, has
    no calibration, or if an SPS table is too short.
    """
    if isinstance(draft, Artifact):
        draft.verify()
    plan = make_plan(config, store, draft)
    if config.plan:
        show_plan(config, plan)
        return None
    found = store.find(KIND, plan.fingerprint)
    if found is not None and is_main():
        console.say(f"Reusing the study of {plan.job.name}: {found.reference} ({found.path})")
    artifact = found or _study(config, store, plan)
    if is_main():
        show(artifact, _judged(store, plan))
    return artifact


def make_plan(config: Config, store: Store, draft: Artifact | Path) -> StudyPlan:
    """Check the settings against the draft and the tables, and identify the study."""
    study = config.study
    # Settings of ``evaluate`` that a study ignores must not change its fingerprint.
    settings = replace(
        config.evaluate, calibrate=False, sweep=False, max_new_tokens=study.max_new_tokens, threshold=0.0,
        baseline=False, profile=False,
    )  # fmt: skip
    job = make_job(replace(config, evaluate=settings), draft)
    model = read_config(job.draft)
    drafts = model.block_size - (0 if model.sample_from_anchor else 1)
    chosen = arms(study.policies, drafts, study.threshold)
    confident = [arm.name for arm in chosen if arm.name in CONFIDENT]
    if confident and not model.enable_confidence_head:
        if not study.in_chain:
            raise StudyError(
                f"study.policies: {confident[0]} needs a confidence head, which {job.draft} does not have"
            )
        console.say(f"study: leaving out {', '.join(confident)}, because the draft has no confidence head")
        chosen, confident = [arm for arm in chosen if arm.name not in CONFIDENT], []
    temperatures = temperatures_of(config, store, job, drafts) if confident else None
    tables = read_tables(study, drafts)
    told = {name: value for name, value in section(study).items() if name not in SIMULATED}
    measured = fingerprint(SCHEMA_VERSION, job.fingerprint, told, temperatures)
    simulated = {name: getattr(study, name) for name in SIMULATED}
    whole = fingerprint(measured, simulated, [asdict(table) for table in tables])
    return StudyPlan(job, chosen, points(study, chosen), drafts, temperatures, tables, measured, whole)


def read_tables(study: StudyConfig, drafts: int) -> list[SpsTable]:
    """The SPS tables to simulate with; raises ``UserError`` for one that is absent or too short for G = ``drafts``."""
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
        points, answers = read_points(work.path, plan.points), read_pool(work.path)
        facts = _facts(config, plan, len(answers))
        with console.progress("study: simulating", count, is_main()) as bar:
            tell = partial(bar.advance, 1)
            result = result_of(points, answers, config.study, facts, plan.arms, plan.tables, tell)
        latest = made_of_draft(store, "evaluation", job.parents["draft"])[:1]
        write_report(work.path, result, [committed(one, store) for one in latest])
        return {
            "points": len(result.real),
            "simulated_points": len(result.simulated),
            "largest_error": max((abs(row.error) for row in result.prediction), default=None),
        }

    return commit_once(store, work, finish, FILES)


def _judged(store: Store, plan: StudyPlan) -> CalibrationEffect | None:
    """The effect of the study's temperatures in the latest evaluation of the draft that used them; None without one."""
    for one in made_of_draft(store, "evaluation", plan.job.parents["draft"]):
        calibration = read_summary(one.path).calibration
        if calibration and calibration.temperatures == plan.temperatures:
            return calibration
    return None


def _take_over(store: Store, plan: StudyPlan, folder: Path) -> None:
    """Copy the measurements of the latest study with the same settings."""
    for artifact in reversed(store.list(KIND)):
        if artifact.manifest.config.get("measured") == plan.measured:
            for name in (
                f"{STEPS}/*",
                POOL,
                f"{TIMES}/*",
            ):  # times come last, because they mark a unit as done
                for path in sorted(artifact.path.glob(name)):
                    if not (folder / path.relative_to(artifact.path)).exists():
                        shutil.copy(path, folder / path.relative_to(artifact.path))
            console.say(f"Reusing measurements from {artifact.reference}")
            return


def _measure(config: Config, plan: StudyPlan, work: Work) -> None:
    """Serve points and record the pool, shared with other processes, until everything is measured."""
    units = {point.unit: point for point in plan.points}

    def is_done(unit: str) -> bool:
        """If the folder is gone, another process has committed the study, so every unit counts as done."""
        path = work.path / POOL if unit == RECORD else work.path / TIMES / f"{unit}.parquet"
        return path.is_file() or not (work.path / TIMES).is_dir()

    share = WorkShare(work.path, [RECORD, *units] if config.study.simulate else list(units), is_done)
    left = share.remaining
    if not left:
        return
    if is_main() and len(left) < len(share.units):
        console.say(f"study of {work.name}: {share.done} of {len(share.units)} points are already measured")
    server = InProcessServer.load(config, plan.job, plan.temperatures)
    server.warm_up()
    with console.progress(f"study of {work.name}", len(left), is_main()) as bar:
        for unit in share:
            if unit == RECORD:
                answers = server.record(max(config.study.concurrencies))
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
    """Write the two files of a unit."""
    parts = {BEFORE: measured.before, POINT: measured.steps, AFTER: measured.after}
    steps = [{"part": part} | asdict(step) for part, steps in parts.items() for step in steps]
    write_rows(folder / STEPS / f"{unit}.parquet", steps, STEP_SCHEMA)
    write_rows(folder / TIMES / f"{unit}.parquet", [asdict(t) for t in measured.times], TIME_SCHEMA)


def read_points(folder: Path, asked: Sequence[StudyPoint]) -> dict[StudyPoint, MeasuredPoint]:
    """Read back what ``write_point`` wrote for the points ``asked``; raises ``StudyError`` naming a damaged file."""
    found = {}
    for point in asked:
        steps: dict[str, list[Step]] = {BEFORE: [], POINT: [], AFTER: []}
        for row in read_rows(folder / STEPS / f"{point.unit}.parquet", STEP_SCHEMA):
            steps[row.pop("part")].append(Step(**row))
        times = [Times(**row) for row in read_rows(folder / TIMES / f"{point.unit}.parquet", TIME_SCHEMA)]
        found[point] = MeasuredPoint(steps[BEFORE], steps[POINT], times, steps[AFTER])
    return found


def pool_rows(answers: Sequence[RecordedAnswer]) -> list[dict[str, Any]]:
    """Rows of data_specs/study.POOL_SCHEMA; an answer without drafts has one row, whose ``held`` is None."""
    rows = []
    for number, answer in enumerate(answers):
        common = {"answer": number, "prompt": answer.prompt, "limit": answer.limit}
        pairs = zip(answer.held.tolist(), answer.confidences.tolist(), strict=True)
        rows += [common | {"held": held, "confidences": told} for held, told in pairs] or [
            common | {"held": None, "confidences": [0.0] * answer.confidences.shape[1]}
        ]
    return rows


def read_pool(folder: Path) -> list[RecordedAnswer]:
    """Read back the answers of ``pool_rows``; none if nothing was recorded."""
    if not (folder / POOL).is_file():
        return []
    answers = []
    for _, group in groupby(read_rows(folder / POOL, POOL_SCHEMA), itemgetter("answer")):
        rows = list(group)
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


# --- plan -------------------------------------------------------------------------------------------------


def show_plan(config: Config, plan: StudyPlan) -> None:
    """Print points, tokens and the longest time, which assumes plain decoding and the step times of a short run now."""
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
        f"{len(plan.points)} points take at most about {console.duration(seconds)}, and each of {simulated} simulated "
        "points takes seconds. Points that exist are not measured again. Nothing was done."
    )
