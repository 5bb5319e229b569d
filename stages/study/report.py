"""The report of a study: study.json, study.md, plots, and the last screen. ``result`` is what study_result.py makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from data_specs.manifest import read_json, write_json
from data_specs.study import MACHINE, MARKDOWN, MEASURED, RESULT
from pipeline import console
from pipeline.report.confidence import in_a_line
from pipeline.report.markdown import markdown_table
from pipeline.report.page import PAGE
from pipeline.report.shared import axes, save
from pipeline.store.artifacts import Artifact

COLUMNS = (
    ("tokens/s", "throughput", "{:.1f}"),
    ("tokens/s/user", "speed", "{:.1f}"),
    ("median", "speed_p50", "{:.1f}"),
    ("95 % exceed", "speed_p95", "{:.1f}"),
    ("budget", "budget", "{:.2f}"),
    ("accepted length", "accepted_length", "{:.2f}"),
    ("acceptance", "acceptance", "{:.0%}"),
    ("first token s", "ttft_p50", "{:.2f}"),
)
SHARES = ("prefill", "draft", "schedule", "verify", "idle")
FRONT = "study_front"
LOAD = "study_load"

Table = tuple[str, Sequence[str], list[list[str]]]  # title, columns, rows
Entries = list[dict[str, Any]]


def write_report(folder: Path, result: dict[str, Any]) -> None:
    """Write ``result`` into ``folder``: as JSON, as Markdown, and as plots."""
    write_json(folder / RESULT, result)
    (folder / MARKDOWN).write_text(markdown(result))
    for system in systems(result):
        measured, lines = entries_of(result, system)
        plot_front(folder / f"{FRONT}_{_file(system)}.png", system, measured, lines, result)
        policies = result["facts"]["policies"]
        plot_load(folder / f"{LOAD}_{_file(system)}.png", system, measured, lines, policies)


def systems(result: dict[str, Any]) -> list[str]:
    """The machine that was measured, and the SPS tables."""
    return list(result["fronts"])


def entries_of(result: dict[str, Any], system: str) -> tuple[Entries, Entries]:
    """Measured points and simulated ones of a system (all requests at once)."""
    name = MACHINE if system == MEASURED else system
    simulated = [e for e in result["simulated"] if e["sps"] == name and e["arrival"] is None]
    return (result["real"] if system == MEASURED else []), simulated


# --- text -------------------------------------------------------------------------------------------------


def points_table(title: str, entries: Entries) -> Table:
    """Figures of every point, by concurrency and policy."""
    rows = [
        [e["policy"], str(e["concurrency"]), *(cell(e["metrics"][key], form) for _, key, form in COLUMNS)]
        for e in entries
    ]
    return title, ("policy", "concurrency", *(name for name, _, _ in COLUMNS)), rows


def shares_table(entries: Entries) -> Table:
    """Where the time went."""
    rows = [
        [
            e["policy"],
            str(e["concurrency"]),
            *(cell(e["metrics"][f"{part}_share"], "{:.1%}") for part in SHARES),
        ]
        for e in entries
    ]
    return "Share of the time", ("policy", "concurrency", *SHARES), rows


def prediction_table(result: dict[str, Any]) -> Table:
    """Simulated against measured throughput."""
    keys = (("real", "{:.1f}"), ("simulated", "{:.1f}"), ("error", "{:+.1%}"))
    rows = [
        [p["policy"], str(p["concurrency"]), *(cell(p[key], form) for key, form in keys)]
        for p in result["prediction"]
    ]
    return "Prediction", ("policy", "concurrency", "measured tokens/s", "simulated", "error"), rows


def sla_table(result: dict[str, Any], system: str) -> Table:
    """Throughput where every user is to see so many tokens a second, by policy."""
    offered = result["fronts"][system]["sla"]
    anchors = list(next(iter(offered.values()), {}))
    rows = [[name, *(cell(offered[name][a], "{:,.0f}") for a in anchors)] for name in offered]
    title = f"Throughput in tokens/s at a speed of ... tokens/s/user ({system})"
    return title, ("policy", *anchors), rows


def arrivals_table(result: dict[str, Any], system: str) -> Table:
    """Policies under Poisson arrivals."""
    entries = [e for e in result["simulated"] if e["sps"] == system and e["arrival"] is not None]
    keys = (("tokens/s", "throughput", "{:,.0f}"), ("tokens/s/user", "speed_p50", "{:.1f}"),
            ("95 % exceed", "speed_p95", "{:.1f}"), ("first token s (95 %)", "ttft_p95", "{:.3f}"),
            ("requests at a time", "requests", "{:.0f}"), ("budget", "budget", "{:.2f}"))  # fmt: skip
    rows = [
        [e["policy"], f"{e['arrival']:.3g}", *(cell(e["metrics"][key], form) for _, key, form in keys)]
        for e in entries
    ]
    return f"Poisson arrivals ({system})", ("policy", "requests/s", *(name for name, _, _ in keys)), rows


def notes(result: dict[str, Any]) -> list[str]:
    """What the tables do not say."""
    facts = result["facts"]
    sampler = ", ".join(f"{name} {value}" for name, value in facts["sampler"].items() if value is not None)
    repeats = max((e["repeats"] for e in result["real"]), default=0)
    lines = [
        f"{facts['draft']} on {facts['target']}, {facts['device']}, {facts['dtype']}; sampler: {sampler}; prompts of "
        f"{', '.join(facts['benchmarks'])}; at most {facts['max_new_tokens']} new tokens; all requests at once; "
        f"{repeats} runs a point",
        "tokens/s: of all requests, first arrival to last finish; tokens/s/user: after the first token, of all users "
        "together, the median, and what 95 % exceed; budget: tokens verified a request and step, the anchor included",
        "confidences " + ("calibrated" if facts["calibrated"] else "not calibrated")
        + f"; threshold {facts['threshold']}",
    ]  # fmt: skip
    if result["prediction"]:
        lines.append(
            "simulated: the recorded answers replayed with step costs that were timed beside the runs, at the pace "
            "that the machine had during each run: the speed of a shared one drifts, so a pass that is always the same "
            "is timed between the steps, off the run's clock; of the run itself nothing is used"
        )
    return lines + [f"{name}: {note}" for name, note in facts["notes"].items()]


def verdicts(result: dict[str, Any]) -> list[str]:
    """One line a check."""
    lines = []
    if result["prediction"]:
        worst = max(result["prediction"], key=lambda p: abs(p["error"]))
        lines.append(
            f"the simulation is off by {abs(worst['error']):.1%} at most ({worst['policy']} at "
            f"{worst['concurrency']}) over {len(result['prediction'])} measured points"
        )
    for system, found in result["checks"].items():
        for policy, check in found.items():
            where = "nowhere" if check["shortfall"] <= 0 else f"at most {check['shortfall']:.1%}"
            same = f"{max(0.0, check['same_load']):.1%}"
            ends = f"{check['budgets'][0][1]:.2f} -> {check['budgets'][-1][1]:.2f}"
            lines.append(
                f"{system}: {policy} lies {where} below the front of the best fixed lengths (limit "
                f"{check['limit']:.0%}: {'holds' if check['holds'] else 'does NOT hold'}), {same} in throughput at "
                f"equal concurrency; budget {ends} from {check['budgets'][0][0]} to "
                f"{check['budgets'][-1][0]} requests ({'falls' if check['budget_falls'] else 'does NOT fall'})"
            )
    for system, found in result["checks"].items():
        ahead = next((check["plain_ahead_from"] for check in found.values()), None)
        if ahead is not None:
            lines.append(
                f"{system}: from {ahead} requests on plain decoding serves more than any policy that drafts"
            )
    return lines


def markdown(result: dict[str, Any]) -> str:
    """The report as Markdown, with headings of the second level."""
    parts = [f"## {result['facts']['draft']} under load", _bullets(notes(result))]
    if lines := verdicts(result):
        parts.append(_bullets(lines))
    parts += [_text(points_table("Measured", result["real"])), _text(shares_table(result["real"]))]
    if result["prediction"]:
        parts.append(_text(prediction_table(result)))
    for system in systems(result):
        parts.append(_text(sla_table(result, system)))
        if system != MEASURED:
            parts.append(_text(points_table(f"Simulated: {system}", entries_of(result, system)[1])))
            if any(e["arrival"] is not None for e in result["simulated"]):
                parts.append(_text(arrivals_table(result, system)))
        for kind in (FRONT, LOAD):
            parts.append(f"![{kind} {system}]({kind}_{_file(system)}.png)")
    return "\n\n".join(parts) + "\n"


def show(artifact: Artifact, calibration: dict[str, Any] | None = None) -> None:
    """The last screen, from the stored result: policies by concurrency, checks, and what to type next.

    ``calibration`` is what an evaluation's summary.json tells of the temperatures that the study used.
    """
    result = read_json(artifact.path / RESULT)
    if result["prediction"]:
        console.table(*prediction_table(result))
    told = in_a_line(calibration) if calibration else ""
    console.table(*points_table(f"{result['facts']['draft']} under load", result["real"]), told)
    for text in (*notes(result), *verdicts(result)):
        console.say(f"  {text}")
    console.panel(
        "Study",
        [
            f"study   {artifact.reference}",
            f"folder  {artifact.path}",
            f"report  {artifact.path / PAGE} (opens in any browser; plots and every step beside it)",
            "next    python -m pipeline experiment=serving_study study.concurrencies=[1,2,4,8,16]",
        ],
    )


def cell(value: float | None, form: str) -> str:
    """``value`` in the format ``form``, a dash for none."""
    return "-" if value is None else form.format(value).replace("%", " %")


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _text(table: Table) -> str:
    title, columns, rows = table
    return f"### {title}\n\n{markdown_table(columns, rows)}"


def _file(system: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in system)


# --- plots ------------------------------------------------------------------------------------------------


def plot_front(path: Path, system: str, measured: Entries, lines: Entries, result: dict[str, Any]) -> None:
    """Throughput against per-request speed (the paper's Fig. 7): measured points, simulated lines, SLA anchors."""
    figure, (axis,) = axes(1, (7, 5))
    _draw(axis, measured, lines, result["facts"]["policies"], _offer)
    for anchor in next(iter(result["fronts"][system]["sla"].values()), {}):
        axis.axvline(float(anchor), color="grey", linewidth=0.8, linestyle=":")
    axis.set(
        xscale="log", yscale="log", xlabel="tokens/s/user", ylabel="tokens/s", title=_title(system, lines)
    )
    save(figure, path)


def plot_load(path: Path, system: str, measured: Entries, lines: Entries, policies: Sequence[str]) -> None:
    """Throughput and verification budget against concurrency (the paper's Fig. 8)."""
    figure, (left, right) = axes(2, (11, 4.5))
    for axis, key in ((left, "throughput"), (right, "budget")):
        _draw(axis, measured, lines, policies, partial(_by_load, key=key))
        axis.set(xscale="log", xlabel="requests at a time", title=_title(system, lines))
    left.set(yscale="log", ylabel="tokens/s")
    right.set(ylabel="tokens verified a request and step")
    save(figure, path)


Place = Callable[[dict[str, Any]], tuple[float | None, float | None]]


def _draw(axis: Any, measured: Entries, lines: Entries, policies: Sequence[str], place: Place) -> None:
    """Points of ``measured`` and lines through ``lines`` at ``place``, a colour a policy; lengths beside them grey."""
    names = dict.fromkeys(entry["policy"] for entry in (*lines, *measured))
    others = [name for name in names if name not in policies]
    for name in (*others, *(name for name in policies if name in names)):
        colour = "0.8" if name in others else f"C{list(policies).index(name)}"
        label: str | None = name if name not in others else "other lengths" if name == others[0] else None
        for entries, style in ((lines, "-"), (measured, "o")):
            pairs = [place(entry) for entry in entries if entry["policy"] == name]
            known = [pair for pair in pairs if None not in pair]
            if known:
                axis.plot(*zip(*known, strict=True), style, color=colour, label=label, markersize=5)
                label = None
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def _offer(entry: dict[str, Any]) -> tuple[float | None, float | None]:
    found = entry["metrics"]
    return found["speed"], found["steady"] or found["throughput"]


def _by_load(entry: dict[str, Any], key: str) -> tuple[float | None, float | None]:
    return entry["concurrency"], entry["metrics"][key]


def _title(system: str, lines: Entries) -> str:
    if system != MEASURED:
        return f"simulated: {system}"
    return "points measured, lines simulated" if lines else "measured"
