"""The section on a serving study (data_specs/study.py): throughput, speed and verification budget under load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from data_specs.study import MACHINE, MEASURED
from pipeline.report.model import (
    Axis,
    Block,
    Cell,
    Drawing,
    Drawings,
    Heading,
    Lines,
    Note,
    PlottedPoint,
    Section,
    Series,
    Table,
    plain,
    powers,
    words,
)  # fmt: skip

TITLE = "Serving under load"
METRICS = (  # column, metric, format
    ("tokens/s", "throughput", "{:,.1f}"),
    ("tokens/s/user p50", "speed_p50", "{:.1f}"),
    ("p95", "speed_p95", "{:.1f}"),
    ("first token p95, s", "ttft_p95", "{:.2f}"),
    ("budget", "budget", "{:.2f}"),
    ("acceptance", "acceptance", "{:.1%}"),
    ("draft share", "draft_share", "{:.1%}"),
    ("verify share", "verify_share", "{:.1%}"),
    ("schedule share", "schedule_share", "{:.1%}"),
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
CLOSED = (  # title, across, up: paper, Fig. 7 and 8
    ("Throughput against speed", "speed", "offered"),
    ("Throughput by concurrency", "concurrency", "throughput"),
    ("Verification budget by concurrency", "concurrency", "budget"),
)
OPEN = (
    ("Speed by load", "arrival", "speed_p50"),
    ("Throughput by load", "arrival", "throughput"),
    ("Verification budget by load", "arrival", "budget"),
)
CHECKS = {  # column: key, format
    "front lower by at most": ("shortfall", "{:.1%}"),
    "allowed": ("limit", "{:.1%}"),
    "holds": ("holds", ""),
    "tokens/s lower at equal load by at most": ("same_load", "{:.1%}"),
    "plain decoding ahead from, at a time": ("plain_ahead_from", "{}"),
    "budget falls with load": ("budget_falls", ""),
}
WORDS = (
    "Tokens/s: of the whole system. Tokens/s/user: what a request sees after its first token; 95 % exceed p95. "
    "Budget: tokens verified a request and step, the anchor included. Against speed, tokens/s are those while slots "
    "are refilled, and lines are the fronts: what no other point of the policy beats in both."
)
Runs = Sequence[tuple[int, dict[str, Any]]]  # each with its place in the JSON
Fronts = dict[str, list[tuple[float, float]]]  # policy -> (speed, throughput)


def serving(study: dict[str, Any] | None) -> Section:
    """Measured and simulated runs, how well the simulation predicts, and what was checked."""
    if not study:
        text = (
            "No serving study of this draft. experiment=serving_study makes one; stage=report then shows it."
        )
        return Section("serving", TITLE, [Note(text, absent=True)])
    blocks: list[Block] = [
        Note(WORDS),
        *_system(study, MEASURED, "study/real", list(enumerate(study["real"]))),
    ]
    simulated = list(enumerate(study["simulated"]))
    for sps in dict.fromkeys(run["sps"] for _, run in simulated if run["sps"] != MACHINE):
        runs = [(n, run) for n, run in simulated if run["sps"] == sps]
        blocks += _system(study, sps, "study/simulated", runs)
    tables = (_service_levels(study), _prediction(study), _checks(study), _facts(study))
    return Section("serving", TITLE, [*blocks, *(table for table in tables if table.rows)])


def _system(study: dict[str, Any], name: str, path: str, runs: Runs) -> list[Block]:
    """Drawings and table of one machine or SPS table: requests all at once, then arriving by themselves."""
    title = "Measured" if name == MEASURED else f"Simulated with the costs of {name}"
    policies = study["facts"]["policies"]
    fronts = study["fronts"].get(name, {}).get("points", {})
    closed = [(n, run) for n, run in runs if run.get("arrival") is None]
    arriving = [(n, run) for n, run in runs if run.get("arrival") is not None]
    blocks: list[Block] = []
    for heading, part, charts, lines in (
        (title, closed, CLOSED, fronts),
        (f"{title}, Poisson arrivals", arriving, OPEN, {}),
    ):
        if part:
            blocks += [
                Heading(heading),
                _drawings(part, policies, charts, lines),
                _table(heading, path, part),
            ]
    return blocks


def _drawings(
    runs: Runs, policies: Sequence[str], charts: Sequence[tuple[str, str, str]], fronts: Fronts
) -> Drawings:
    """A colour a policy, the same in all drawings of the page."""
    used = {run["policy"] for _, run in runs}
    order = [*policies, *sorted(used - set(policies))]
    drawn = [_chart(title, runs, order, x, y, fronts) for title, x, y in charts]
    return Drawings(drawn, [(style, policy) for style, policy in enumerate(order) if policy in used])


def _chart(title: str, runs: Runs, order: Sequence[str], x: str, y: str, fronts: Fronts) -> Drawing:
    """Runs joined along x; against speed they are loose points, and the fronts are the lines."""
    lines = [_line(policy, style, runs, x, y) for style, policy in enumerate(order)]
    if x == "speed" and fronts:
        loose = [Series(one.label, one.style, one.points, loose=True) for one in lines]
        lines = [
            Series(p, style, [PlottedPoint(*at) for at in fronts[p]])
            for style, p in enumerate(order)
            if p in fronts
        ] + loose
    points = [point for one in lines for point in one.points]
    return Lines(title, [one for one in lines if one.points], _across(x, points), Axis(UNITS[y]))


def _across(x: str, points: Sequence[PlottedPoint]) -> Axis:
    values = [point.x for point in points]
    return powers(UNITS[x], values) if x == "concurrency" and values else Axis(UNITS[x])


def _line(policy: str, style: int, runs: Runs, x: str, y: str) -> Series:
    points = []
    for run in sorted(
        (r for _, r in runs if r["policy"] == policy), key=lambda r: (r["concurrency"], r.get("arrival") or 0)
    ):
        known = run["metrics"] | {"concurrency": run["concurrency"], "arrival": run.get("arrival")}
        # What fronts are made of.
        known["offered"] = known.get("steady") or known["throughput"]
        known["speed"] = known.get("speed", known["speed_p50"])
        if known.get(x) is not None and known.get(y) is not None:
            text = f"{policy}, {run['concurrency']} at a time: {known[x]:.4g} {UNITS[x]}, {known[y]:.4g} {UNITS[y]}"
            points.append(PlottedPoint(known[x], known[y], text=text))
    return Series(policy, style, points)


def _table(caption: str, path: str, runs: Runs) -> Table:
    rows, arriving = [], any(run.get("arrival") is not None for _, run in runs)
    for n, run in runs:
        figures = [
            plain(f"{path}/{n}/metrics/{key}", run["metrics"].get(key), form) for _, key, form in METRICS
        ]
        load = [plain(f"{path}/{n}/concurrency", run["concurrency"])]
        load += [plain(f"{path}/{n}/arrival", run["arrival"], "{:.3g}")] if arriving else []
        rows.append([words(run["policy"]), *load, *figures])
    columns = (
        "policy",
        "at a time",
        *(["arrivals/s"] if arriving else []),
        *(title for title, _, _ in METRICS),
    )
    return Table(caption, columns, rows, folded=True)


# --- tables over all systems ------------------------------------------------------------------------------


def _service_levels(study: dict[str, Any]) -> Table:
    """Throughput where every user is to see a speed."""
    found = {name: front.get("sla", {}) for name, front in study["fronts"].items()}
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


def _prediction(study: dict[str, Any]) -> Table:
    """Throughput as measured and as simulated at the same points."""
    forms = (("real", "{:,.1f}"), ("simulated", "{:,.1f}"), ("error", "{:+.1%}"))
    rows = []
    for n, one in enumerate(study["prediction"]):
        path = f"study/prediction/{n}"
        figures = [plain(f"{path}/{key}", one[key], form) for key, form in forms]
        rows.append([words(one["policy"]), plain(f"{path}/concurrency", one["concurrency"]), *figures])
    columns = ("policy", "at a time", "measured tokens/s", "simulated", "error")
    return Table("The simulation against the measured runs", columns, rows)


def _checks(study: dict[str, Any]) -> Table:
    """Whether a scheduler's front is anywhere below the best fixed one, and whether its budget falls with load."""
    rows: list[list[Cell]] = []
    for sps, policies in study["checks"].items():
        for policy, found in policies.items():
            path = f"study/checks/{sps}/{policy}"
            figures = [plain(f"{path}/{key}", found.get(key), form) for key, form in CHECKS.values()]
            rows.append([words(sps), words(policy), words(", ".join(found["against"])), *figures])
    columns = ("costs", "policy", "against", *CHECKS)
    return Table("Fronts of the schedulers against the best fixed length", columns, rows, names=3)


def _facts(study: dict[str, Any]) -> Table:
    rows = [[words(name.replace("_", " ")), words(_text(value))] for name, value in study["facts"].items()]
    return Table("Setting of the study", ("", ""), rows, kind="facts")


def _text(value: Any) -> str | None:
    """A value of JSON as words."""
    if isinstance(value, dict):
        return "; ".join(f"{name} {_text(one)}" for name, one in value.items() if one is not None)
    if isinstance(value, list):
        return ", ".join(str(_text(one)) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else None if value is None else str(value)
