"""The profile of an evaluation: measured once, kept as files, shown as a curve.

profile.json   what pipeline/decoding/step_costs.py measures
sps.json       the same as a table of data_specs/sps.py, for simulations (study.sps=<this file>)
sps.png        steps a second by tokens, jagged and fitted
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_specs.manifest import read_json, write_json
from pipeline import console
from pipeline.config import EvaluateConfig
from pipeline.decoding import step_costs
from pipeline.decoding.dialogue import Speaker
from pipeline.report.shared import axes, markdown_table, save

PROFILE, TABLE, PLOT = "profile.json", "sps.json", "sps.png"


def obtain(folder: Path, speaker: Speaker, settings: EvaluateConfig, target: str) -> dict[str, Any]:
    """The profile in ``folder``: that of a run that was killed, or measured now. ``target``: its short name."""
    if (folder / PROFILE).is_file():
        made: dict[str, Any] = read_json(folder / PROFILE)
    else:
        contexts, repeats = sorted(settings.profile_contexts), settings.profile_repeats
        with console.progress("profile of the target", step_costs.rounds_of(contexts, repeats)) as bar:
            made = step_costs.measure(
                speaker.target,
                speaker.draft,
                settings.profile_tokens,
                contexts,
                repeats,
                lambda: bar.advance(1),
            )
        write_json(folder / PROFILE, made)
    write_json(folder / TABLE, step_costs.table(made, f"{target}_here", target))
    plot(folder / PLOT, made)
    return made


def markdown(result: dict[str, Any]) -> list[str]:
    """The section of summary.md; nothing without a profile."""
    if not result.get("profile"):
        return []
    machine = result["profile"]["machine"]
    told = f"{machine['device']}, {machine['cores']} cores, {machine['threads']} threads, {machine['dtype']}"
    return [
        "## Steps a second by tokens of a verification pass, SPS(B)",
        f"Measured on {told}; medians of {result['profile']['repeats']} repeats, in brackets 95 % of them.",
        markdown_table(*table(result["profile"])),
        f"![steps a second by tokens]({PLOT})",
    ]


def show(result: dict[str, Any]) -> None:
    """The curve as a table on the last screen; nothing without a profile."""
    if result.get("profile"):
        columns, rows = table(result["profile"])
        console.table("SPS(B): steps a second of the target by tokens of a step", columns, rows)


def table(made: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: steps a second at powers of two and Bmax, a column a context."""
    columns = ["tokens", *(f"context {curve['context']}" for curve in made["contexts"])]
    most = made["contexts"][0]["points"][-1]["tokens"]
    rows = []
    for place, point in enumerate(made["contexts"][0]["points"]):
        count = point["tokens"]
        if count & (count - 1) == 0 or count == most:
            rows.append([str(count), *(_rate(curve["points"][place]) for curve in made["contexts"])])
    return columns, rows


def _rate(point: dict[str, Any]) -> str:
    low, high = point["interval"]
    return f"{1 / point['seconds']:.1f} [{1 / high:.1f}, {1 / low:.1f}]"


def plot(path: Path, made: dict[str, Any]) -> None:
    """SPS(B), a line a context: medians with their intervals as dots, the monotone fit as a line."""
    figure, (axis,) = axes(1, (7, 4))
    for curve in made["contexts"]:
        counts = [point["tokens"] for point in curve["points"]]
        rates = [1 / point["seconds"] for point in curve["points"]]
        (line,) = axis.plot(counts, [1 / s for s in curve["fit"]], label=f"context {curve['context']}")
        low, high = zip(*(point["interval"] for point in curve["points"]), strict=True)
        spread = [
            [max(0.0, r - 1 / h) for r, h in zip(rates, high, strict=True)],
            [max(0.0, 1 / s - r) for r, s in zip(rates, low, strict=True)],
        ]
        axis.errorbar(counts, rates, yerr=spread, fmt="o", markersize=3, capsize=2, color=line.get_color())
    axis.set(xlabel="tokens of a verification pass, B", ylabel="steps a second, SPS(B)", ylim=(0, None))
    axis.set_xscale("log", base=2)
    axis.grid(alpha=0.3)
    axis.legend()
    save(figure, path)
