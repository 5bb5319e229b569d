"""The section on a serving study (data_specs/study.py): throughput, speed and verification budget under load."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.html.model import Block, Cell, Drawing, Drawings, Heading, Note, Section, Table, plain, words
from pipeline.html.svg import Point, Series, linear, plot, powers, swatch

TITLE = "Serving under load"
METRICS = (  # column, metric, format
    ("tokens/s", "throughput", "{:,.1f}"),
    ("tokens/s/user p50", "speed_p50", "{:.1f}"),
    ("p95", "speed_p95", "{:.1f}"),
    ("budget", "budget", "{:.2f}"),
    ("acceptance", "acceptance", "{:.1%}"),
    ("draft share", "draft_share", "{:.1%}"),
    ("verify share", "verify_share", "{:.1%}"),
    ("schedule share", "schedule_share", "{:.1%}"),
)
WORDS = (
    "Tokens/s: of the whole system. Tokens/s/user: what a request sees after its first token; 95 % of them exceed p95. "
    "Budget: tokens verified a request and step, the anchor included. Concurrency: requests served at a time."
)
Runs = Sequence[dict[str, Any]]


def serving(study: dict[str, Any] | None) -> Section:
    """Fronts, throughput and budget of measured and simulated runs, and how well the simulation predicts."""
    if not study:
        text = (
            "No serving study of this draft. experiment=serving_study makes one; stage=report then shows it."
        )
        return Section("serving", TITLE, [Note(text, absent=True)])
    real, simulated = study.get("real", []), study.get("simulated", [])
    policies = list(dict.fromkeys(run["policy"] for run in [*real, *simulated]))
    blocks: list[Block] = [Note(WORDS)]
    if real:
        runs = list(enumerate(real))
        blocks += [
            Heading("Measured runs"),
            _drawings(real, policies),
            _table("Measured runs", "study/real", runs),
        ]
    for sps in dict.fromkeys(run.get("sps", "") for run in simulated):
        runs = [(n, run) for n, run in enumerate(simulated) if run.get("sps", "") == sps]
        name = f"Simulated with the costs {sps}" if sps else "Simulated"
        blocks += [Heading(name), _drawings([run for _, run in runs], policies)]
        blocks.append(_table(name, "study/simulated", runs))
    return Section("serving", TITLE, [*blocks, *_prediction(study), *_checks(study)])


def _drawings(runs: Runs, policies: Sequence[str]) -> Drawings:
    """A point a run, joined by policy in the order of concurrency (paper, Fig. 7 and 8)."""
    used = {run["policy"] for run in runs}
    pairs = (
        ("Throughput against speed", "speed_p50", "throughput"),
        ("Throughput by concurrency", "concurrency", "throughput"),
        ("Verification budget by concurrency", "concurrency", "budget"),
    )
    charts = [_chart(title, runs, policies, x, y) for title, x, y in pairs]
    return Drawings(charts, [(swatch(style), p) for style, p in enumerate(policies) if p in used])


def _chart(title: str, runs: Runs, policies: Sequence[str], x: str, y: str) -> Drawing:
    lines = [_line(policy, style, runs, x, y) for style, policy in enumerate(policies)]
    points = [point for one in lines for point in one.points]
    labels = {
        "speed_p50": "tokens/s/user, p50",
        "throughput": "tokens/s",
        "budget": "tokens verified a request",
    }
    if x == "concurrency" and points:
        across = powers("concurrency", [p.x for p in points])
    else:
        across = linear(labels.get(x, x), [p.x for p in points])
    return Drawing(
        title,
        plot(title, [one for one in lines if one.points], across, linear(labels[y], [p.y for p in points])),
    )


def _line(policy: str, style: int, runs: Runs, x: str, y: str) -> Series:
    points = []
    for run in sorted((r for r in runs if r["policy"] == policy), key=lambda r: r["concurrency"]):
        known = run["metrics"] | {"concurrency": run["concurrency"]}
        if known.get(x) is not None and known.get(y) is not None:
            text = f"{policy}, {run['concurrency']} requests: {known[x]:.4g}, {known[y]:.4g}"
            points.append(Point(known[x], known[y], text=text))
    return Series(policy, style, points)


def _table(caption: str, path: str, runs: Iterable[tuple[int, dict[str, Any]]]) -> Table:
    """One row a run; ``runs`` are numbered as the JSON at ``path`` has them."""
    rows = []
    for n, run in runs:
        figures = [
            plain(f"{path}/{n}/metrics/{key}", run["metrics"].get(key), form) for _, key, form in METRICS
        ]
        rows.append([words(run["policy"]), plain(f"{path}/{n}/concurrency", run["concurrency"]), *figures])
    columns = ("policy", "concurrency", *(title for title, _, _ in METRICS))
    return Table(caption, columns, rows, folded=True)


def _prediction(study: dict[str, Any]) -> list[Block]:
    """Throughput as measured and as simulated at the same points."""
    rows: list[list[Cell]] = []
    forms = (("real", "{:,.1f}"), ("simulated", "{:,.1f}"), ("error", "{:+.1%}"))
    for n, one in enumerate(study.get("prediction", [])):
        path = f"study/prediction/{n}"
        figures = [plain(f"{path}/{key}", one.get(key), form) for key, form in forms]
        rows.append([words(one["policy"]), plain(f"{path}/concurrency", one["concurrency"]), *figures])
    columns = ("policy", "concurrency", "measured tokens/s", "simulated", "error")
    return [Table("The simulation against the measured runs", columns, rows)] if rows else []


def _checks(study: dict[str, Any]) -> list[Block]:
    """What the study checked and was told, as it says it."""
    tables: list[Block] = []
    for key, caption in (("checks", "Checks of the study"), ("facts", "Setting of the study")):
        rows = [
            [words(name.replace("_", " ")), words(_text(value))] for name, value in study.get(key, {}).items()
        ]
        if rows:
            tables.append(Table(caption, ("", ""), rows, kind="facts"))
    return tables


def _text(value: Any) -> str | None:
    """A value of JSON as words."""
    if isinstance(value, dict):
        return "; ".join(f"{name} {_text(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(str(_text(one)) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else None if value is None else str(value)
