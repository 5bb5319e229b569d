"""The section on a serving study (data_specs/study.py): throughput, speed and verification budget under load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from data_specs.results.study import (
    Check,
    Fronts,
    RealPoint,
    SimulatedPoint,
    StudyResult,
)  # fmt: skip
from data_specs.study import MACHINE, MEASURED
from pipeline.report.model import (
    EVERYWHERE,
    FILED,
    PAGE,
    TEXT,
    Axis,
    Block,
    Cell,
    Drawing,
    Drawings,
    Heading,
    Lines,
    Metric,
    Note,
    PlottedPoint,
    Section,
    Series,
    Table,
    cells,
    listed,
    plain,
    powers,
    titles,
    words,
)  # fmt: skip

TITLE = "Serving under load"
METRICS = (
    Metric("tokens/s", "throughput", "{:,.1f}"),
    Metric("tokens/s/user", "speed", "{:.1f}"),
    Metric("p50", "speed_p50", "{:.1f}"),
    Metric("p95", "speed_p95", "{:.1f}"),
    Metric("budget", "budget", "{:.2f}"),
    Metric("accepted length", "accepted_length", "{:.2f}"),
    Metric("acceptance", "acceptance", "{:.1%}"),
    Metric("first token s, p50", "ttft_p50", "{:.2f}"),
    Metric("first token s, p95", "ttft_p95", "{:.2f}"),
    Metric("prefill share", "prefill_share", "{:.1%}"),
    Metric("draft share", "draft_share", "{:.1%}"),
    Metric("schedule share", "schedule_share", "{:.1%}"),
    Metric("verify share", "verify_share", "{:.1%}"),
    Metric("idle share", "idle_share", "{:.1%}"),
)
NARROW = (titles(METRICS[:7]), titles(METRICS[7:]))  # columns of the two tables on a narrow screen
PREDICTION = (
    Metric("measured tokens/s", "real", "{:,.1f}"),
    Metric("simulated", "simulated", "{:,.1f}"),
    Metric("error", "error", "{:+.1%}"),
)
CHECKS = (
    Metric("front lower by at most", "shortfall", "{:.1%}"),
    Metric("allowed", "limit", "{:.1%}"),
    Metric("holds", "holds"),
    Metric("tokens/s lower at equal load by at most", "same_load", "{:.1%}"),
    Metric("plain decoding ahead from, at a time", "plain_ahead_from", "{}"),
    Metric("budget falls with load", "budget_falls"),
)
UNITS = {
    "concurrency": "requests at a time",
    "arrival": "requests arriving a second",
    "speed": "tokens/s/user",
    "speed_p50": "tokens/s/user, median",
    "throughput": "tokens/s",
    "offered": "tokens/s",
    "budget": "tokens verified a request",
}
DRAWN = {  # part of the PNG's name -> title, value across and value up of each drawing
    "front": [("Throughput against speed", "speed", "offered")],  # paper, Fig. 7
    "load": [  # paper, Fig. 8
        ("Throughput by concurrency", "concurrency", "throughput"),
        ("Verification budget by concurrency", "concurrency", "budget"),
    ],
    "arrivals": [
        ("Speed by load", "arrival", "speed_p50"),
        ("Throughput by load", "arrival", "throughput"),
        ("Verification budget by load", "arrival", "budget"),
    ],
}
WORDS = (
    "Tokens/s: of the whole system, from the first arrival to the last finish. Tokens/s/user: what a request sees "
    "after its first token, of all users together; p50 is the median, and 95 % of the users exceed p95. Budget: tokens "
    "verified per request and step, including the anchor. Drawn against speed, tokens/s are without ramp-up and drain, "
    "and lines are the fronts: the points that no other point of the policy beats in both."
)
SIMULATION = (
    "Simulated: the recorded answers were replayed with step costs that were timed before and after the runs, at the "
    "machine's pace during each run. To follow the drifting speed of a shared machine, a fixed pass is timed between "
    "the steps, off the run's clock. Nothing else of the run is used."
)
Runs = Sequence[tuple[int, RealPoint | SimulatedPoint]]  # each with its place in the JSON


def serving(study: StudyResult | None) -> Section:
    """Measured and simulated runs, the accuracy of the simulation, and the checks of the schedulers."""
    if not study:
        text = (
            "No serving study of this draft. experiment=serving_study makes one; stage=report then shows it."
        )
        return Section("serving", TITLE, [Note(text, absent=True)])
    blocks: list[Block] = [Note(WORDS, where=EVERYWHERE)]
    blocks += [Note(text, where=TEXT) for text in setting(study)]
    blocks += [Note(text, where=EVERYWHERE) for text in verdicts(study)]
    blocks += _system(study, MEASURED, "study/real", list(enumerate(study.real)))
    simulated = list(enumerate(study.simulated))
    for sps in dict.fromkeys(run.sps for _, run in simulated if run.sps != MACHINE):
        runs = [(n, run) for n, run in simulated if run.sps == sps]
        blocks += _system(study, sps, "study/simulated", runs)
    tables = (_service_levels(study), _prediction(study), _checks(study), _facts(study))
    return Section("serving", TITLE, [*blocks, *(table for table in tables if table.rows)])


def title(study: StudyResult) -> str:
    """Draft and target of a study."""
    return f"{study.facts.draft} on {study.facts.target}"


def _system(study: StudyResult, name: str, path: str, runs: Runs) -> list[Block]:
    """Drawings and table of one machine or SPS table: first with all requests at once, then with Poisson arrivals."""
    heading = "Measured" if name == MEASURED else f"Simulated with the costs of {name}"
    fronts = study.fronts.get(name, Fronts({}, {}))
    closed = [(n, run) for n, run in runs if _arrival(run) is None]
    arriving = [(n, run) for n, run in runs if _arrival(run) is not None]
    blocks: list[Block] = []
    if closed:
        drawn = [_drawings(closed, study, name, kind, fronts) for kind in ("front", "load")]
        where = EVERYWHERE if name == MEASURED else FILED
        blocks += [Heading(heading), *drawn, _table(heading, path, closed, where)]
    if arriving:
        heading = f"{heading}, Poisson arrivals"
        drawings = _drawings(arriving, study, name, "arrivals", Fronts({}, {}))
        blocks += [Heading(heading), drawings, _table(heading, path, arriving, FILED)]
    return blocks


def _drawings(runs: Runs, study: StudyResult, system: str, kind: str, fronts: Fronts) -> Drawings:
    """The drawings of ``runs``; each policy has the same colour in all drawings of the page."""
    used, policies = {run.policy for _, run in runs}, study.facts.policies
    order = [*policies, *sorted(used - set(policies))]
    drawn = [_chart(title, runs, order, x, y, fronts) for title, x, y in DRAWN[kind]]
    legend = [(style, policy) for style, policy in enumerate(order) if policy in used]
    file = "".join(letter if letter.isalnum() else "_" for letter in system)
    return Drawings(drawn, legend, file=f"study_{kind}_{file}.png")


def _chart(title: str, runs: Runs, order: Sequence[str], x: str, y: str, fronts: Fronts) -> Drawing:
    """Runs joined along x. Against speed, runs are loose points, lines are the fronts, and SLAs are guides."""
    lines = [_line(policy, style, runs, x, y) for style, policy in enumerate(order)]
    guides: list[float] = []
    if x == "speed" and fronts.points:
        loose = [Series(one.label, one.style, one.points, loose=True) for one in lines]
        lines = [
            Series(policy, style, [PlottedPoint(*at) for at in fronts.points[policy]])
            for style, policy in enumerate(order)
            if policy in fronts.points
        ] + loose
        guides = [float(anchor) for anchor in next(iter(fronts.sla.values()), {})]
    values = [point.x for one in lines for point in one.points]
    across = powers(UNITS[x], values) if x == "concurrency" and values else Axis(UNITS[x])
    return Lines(title, [one for one in lines if one.points], across, Axis(UNITS[y]), guides=guides)


def _line(policy: str, style: int, runs: Runs, x: str, y: str) -> Series:
    points, own = [], [run for _, run in runs if run.policy == policy]
    for run in sorted(own, key=lambda run: (run.concurrency, _arrival(run) or 0)):
        across, up = _value(run, x), _value(run, y)
        if across is not None and up is not None:
            text = f"{policy}, {run.concurrency} at a time: {across:.4g} {UNITS[x]}, {up:.4g} {UNITS[y]}"
            points.append(PlottedPoint(across, up, text=text))
    return Series(policy, style, points)


def _arrival(run: RealPoint | SimulatedPoint) -> float | None:
    return run.arrival if isinstance(run, SimulatedPoint) else None


def _value(run: RealPoint | SimulatedPoint, name: str) -> float | None:
    """The value of ``run`` on an axis of UNITS; fronts are made of ``speed`` and ``offered``."""
    found = run.metrics
    if name == "offered":
        return found.steady or found.throughput
    if name == "speed" and found.speed is None:
        return found.speed_p50
    value: float | None = {"concurrency": run.concurrency, "arrival": _arrival(run)}.get(name)
    return getattr(found, name) if value is None and name != "arrival" else value


def _table(caption: str, path: str, runs: Runs, where: Sequence[str]) -> Table:
    rows, arriving = [], any(_arrival(run) is not None for _, run in runs)
    for n, run in runs:
        load = [plain(f"{path}/{n}/concurrency", run.concurrency)]
        load += [plain(f"{path}/{n}/arrival", _arrival(run), "{:.3g}")] if arriving else []
        rows.append([words(run.policy), *load, *cells(f"{path}/{n}/metrics", run.metrics, METRICS)])
    first = ("policy", "at a time", *(["arrivals/s"] if arriving else []))
    parts = [(*first, *part) for part in NARROW]
    return Table(caption, (*first, *titles(METRICS)), rows, folded=True, where=where, parts=parts)


# --- in sentences -----------------------------------------------------------------------------------------


def setting(study: StudyResult) -> list[str]:
    """What was served, and the notes of the SPS tables, one text each; the page has a table instead."""
    facts = study.facts
    repeats = max((run.repeats for run in study.real), default=0)
    confidences = "calibrated" if facts.calibrated else "not calibrated"
    lines = [
        f"{title(study)}, {facts.device}, {facts.dtype}; sampler: {listed(facts.sampler)}; prompts of "
        f"{', '.join(facts.benchmarks)}; at most {facts.max_new_tokens} new tokens; all requests at once; "
        f"{repeats} runs per point; confidences {confidences}; threshold {facts.threshold}."
    ]
    lines += [SIMULATION] if study.prediction else []
    return lines + [f"{name}: {note}" for name, note in facts.notes.items()]


def verdicts(study: StudyResult) -> list[str]:
    """The results of the study, one sentence per check."""
    lines = []
    if study.prediction:
        worst = max(study.prediction, key=lambda point: abs(point.error))
        lines.append(
            f"The simulation is off by {abs(worst.error):.1%} at most ({worst.policy} at {worst.concurrency}) "
            f"over {len(study.prediction)} measured points."
        )
    for system, found in study.checks.items():
        lines += [_verdict(system, policy, check) for policy, check in found.items()]
        ahead = next((check.plain_ahead_from for check in found.values()), None)
        if ahead is not None:
            lines.append(
                f"{system}: from {ahead} requests on, plain decoding serves more than any policy that drafts."
            )
    return lines


def _verdict(system: str, policy: str, check: Check) -> str:
    where = "nowhere" if check.shortfall <= 0 else f"at most {check.shortfall:.1%}"
    (least, first), (most, last) = check.budgets[0], check.budgets[-1]
    return (
        f"{system}: {policy} lies {where} below the front of the best fixed lengths (limit {check.limit:.0%}: "
        f"{'holds' if check.holds else 'does NOT hold'}), {max(0.0, check.same_load):.1%} in throughput at equal "
        f"concurrency. Its budget changes from {first:.2f} at {least} to {last:.2f} at {most} requests "
        f"({'falls' if check.budget_falls else 'does NOT fall'})."
    )


# --- tables over all systems ------------------------------------------------------------------------------


def _service_levels(study: StudyResult) -> Table:
    """The throughput of each policy at the speeds that every user should see."""
    found = {name: front.sla for name, front in study.fronts.items()}
    anchors = list(dict.fromkeys(a for each in found.values() for reached in each.values() for a in reached))
    rows = [
        [
            words(name),
            words(policy),
            *(plain(f"study/fronts/{name}/sla/{policy}/{a}", reached[a], "{:,.1f}") for a in anchors),
        ]
        for name, each in found.items()
        for policy, reached in each.items()
    ]
    columns = ("costs", "policy", *(f"at {anchor} tokens/s/user" for anchor in anchors))
    return Table("Tokens/s that the system offers where every user sees a speed", columns, rows, names=2)


def _prediction(study: StudyResult) -> Table:
    """Measured and simulated throughput at the same points."""
    rows = []
    for n, one in enumerate(study.prediction):
        path = f"study/prediction/{n}"
        load = plain(f"{path}/concurrency", one.concurrency)
        rows.append([words(one.policy), load, *cells(path, one, PREDICTION)])
    columns = ("policy", "at a time", *titles(PREDICTION))
    return Table("The simulation against the measured runs", columns, rows, where=EVERYWHERE)


def _checks(study: StudyResult) -> Table:
    """How far each scheduler's front lies below the best fixed one, and whether its budget falls with load."""
    rows: list[list[Cell]] = []
    for sps, policies in study.checks.items():
        for policy, found in policies.items():
            figures = cells(f"study/checks/{sps}/{policy}", found, CHECKS)
            rows.append([words(sps), words(policy), words(", ".join(found.against)), *figures])
    columns = ("costs", "policy", "against", *titles(CHECKS))
    return Table("Fronts of the schedulers against the best fixed length", columns, rows, names=3)


def _facts(study: StudyResult) -> Table:
    rows = [
        [words(name.replace("_", " ")), words(_text(value))] for name, value in asdict(study.facts).items()
    ]
    return Table("Setting of the study", ("", ""), rows, kind="facts", where=(PAGE,))


def _text(value: Any) -> str | None:
    """A value of the JSON as text."""
    if isinstance(value, dict):
        return "; ".join(f"{name} {_text(one)}" for name, one in value.items() if one is not None)
    if isinstance(value, list):
        return ", ".join(str(_text(one)) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else None if value is None else str(value)
