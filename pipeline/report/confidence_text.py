"""What the report says of confidences: how well calibrated they are (the paper's Fig. 6), the threshold sweep (Fig. 5).

``result`` is what summary.json holds. Its ``calibration`` is None or has the prompts, rounds and data of the fit, the
``temperatures`` [G], and lists by position ``before`` and ``after`` (confidence.compare on the benchmarks' rounds); its
``sweep`` is None or a list of sweep.sweep_row. Summaries of evaluations that were made before have neither.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from pipeline import console
from pipeline.report.shared import axes, markdown_table, save

RELIABILITY_PLOT, SWEEP_PLOT = "reliability.png", "threshold_sweep.png"
STAGES = ("before", "after")
SWEEP_COLUMNS = (
    "threshold", "accepted a step", "rejected a step", "acceptance rate", "accepted length", "exact", "anew",
)  # fmt: skip


def footnotes(result: dict[str, Any]) -> list[str]:
    """What the calibration was fitted on."""
    calibration = result.get("calibration")
    if calibration is None:
        return []
    return [
        f"calibration: temperatures fitted on {calibration['rounds']:,} rounds of {calibration['prompts']} held-out "
        f"prompts of {calibration['data']}, judged on the benchmarks' rounds; ECE = expected calibration error of the "
        "cumulative product, 20 bins"
    ]


def markdown(result: dict[str, Any]) -> list[str]:
    """Sections of the Markdown report."""
    parts = []
    if calibration := result.get("calibration"):
        parts += [
            "## Calibration of the cumulative product of confidences",
            markdown_table(*_quality_table(calibration)),
            f"![reliability by position, before and after]({RELIABILITY_PLOT})",
        ]
    if sweep := result.get("sweep"):
        parts += [
            "## Threshold sweep",
            markdown_table(SWEEP_COLUMNS, _sweep_rows(sweep)),
            f"- thresholds are on {_scale(result)} confidences; exact: answers whose figures follow from the recorded "
            "run, anew: answers that the threshold changes and that were decoded with it",
            f"![accepted and rejected drafts by threshold]({SWEEP_PLOT})",
        ]
    return parts


def show(result: dict[str, Any]) -> None:
    """Tables of the last screen: the error before and after by position, and the sweep."""
    if calibration := result.get("calibration"):
        positions = [str(k + 1) for k in range(len(calibration["before"]))]
        rows = [
            (name, _percent(_mean_error(calibration, name)), *map(_error, calibration[name]))
            for name in STAGES
        ]
        title = "Calibration error (ECE) of the confidences by position"
        console.table(title, ("", "mean", *positions), rows)
    if sweep := result.get("sweep"):
        console.table(f"Thresholds on {_scale(result)} confidences", SWEEP_COLUMNS, _sweep_rows(sweep))


def in_a_line(calibration: dict[str, Any]) -> str:
    """The error before and after, on average and by position."""
    pairs = [
        f"{_error(before)} -> {_error(after)}"
        for before, after in zip(calibration["before"], calibration["after"], strict=True)
        if before["rounds"]
    ]
    mean_of = " -> ".join(_percent(_mean_error(calibration, name)) for name in STAGES)
    return f"calibrated confidence: ECE {mean_of} on average, by position {', '.join(pairs)}"


def flat_metrics(result: dict[str, Any]) -> dict[str, float]:
    """Mean error before and after, for a tracker."""
    calibration = result.get("calibration")
    if calibration is None:
        return {}
    return {f"calibration/ece_{name}": _mean_error(calibration, name) for name in STAGES}


def plots(folder: Path, result: dict[str, Any]) -> None:
    """Write the plots of what there is into ``folder``."""
    if result.get("calibration"):
        _plot_reliability(folder / RELIABILITY_PLOT, result["calibration"])
    if result.get("sweep"):
        _plot_sweep(folder / SWEEP_PLOT, result["sweep"])


def _scale(result: dict[str, Any]) -> str:
    return "calibrated" if result.get("calibration") else "raw"


def _mean_error(calibration: dict[str, Any], name: str) -> float:
    """Over the positions that a round reached (0 where there is none)."""
    return mean([q["ece"] for q in calibration[name] if q["rounds"]] or [0.0])


def _error(quality: dict[str, Any]) -> str:
    return _percent(quality["ece"]) if quality["rounds"] else "-"


def _percent(value: float) -> str:
    return f"{value:.1%}".replace("%", " %")


def _quality_table(calibration: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows, one a position: temperature, and each figure before and after."""
    figures = (("ECE", "ece", _percent), ("Brier", "brier", "{:.3f}".format), ("AUC", "auc", "{:.3f}".format))
    columns = (
        "position",
        "rounds",
        "temperature",
        *(f"{name} {s}" for name, _, _ in figures for s in STAGES),
    )
    rows = []
    for k, temperature in enumerate(calibration["temperatures"]):
        both = [calibration[name][k] for name in STAGES]
        rounds = both[0]["rounds"]
        cells = [
            "-" if not rounds or q[key] is None else form(q[key]) for _, key, form in figures for q in both
        ]
        rows.append((str(k + 1), f"{rounds:,}", f"{temperature:.2f}", *cells))
    return columns, rows


def _sweep_rows(sweep: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            f"{row['threshold']:.1f}", f"{row['accepted']:.2f}", f"{row['rejected']:.2f}",
            "-" if row["acceptance_rate"] is None else _percent(row["acceptance_rate"]),
            "-" if row["accepted_length"] is None else f"{row['accepted_length']:.2f}",
            str(row["exact"]), str(row["anew"]),
        )
        for row in sweep
    ]  # fmt: skip


def _plot_reliability(path: Path, calibration: dict[str, Any]) -> None:
    """A panel a position: share accepted against predicted probability, before and after; larger dots: more rounds."""
    positions = max(1, sum(q["rounds"] > 0 for q in calibration["before"]))
    figure, panels = axes(positions, (max(4.0, 2.2 * positions), 3.0))
    for k, axis in enumerate(panels):
        axis.plot([0, 1], [0, 1], color="grey", linewidth=0.8, linestyle="--")
        for name in STAGES:
            found = calibration[name][k]
            bins = zip(found["predicted"], found["observed"], found["counts"], strict=True)
            points = [(x, y, 4 + 60 * n / found["rounds"]) for x, y, n in bins if n]
            (drawn,) = axis.plot([x for x, _, _ in points], [y for _, y, _ in points], linewidth=1)
            drawn.set_label(name if k == 0 else None)
            if points:
                axis.scatter(*zip(*points, strict=True), color=drawn.get_color())
        errors = ", ".join(_error(calibration[name][k]) for name in STAGES)
        axis.set(title=f"draft {k + 1}\nECE {errors}", xlabel="predicted", xlim=(0, 1), ylim=(0, 1.02))
        axis.title.set_fontsize(9)
        axis.grid(alpha=0.3)
    panels[0].set(ylabel="share accepted")
    figure.legend(loc="outside upper center", ncols=2)
    save(figure, path)


def _plot_sweep(path: Path, sweep: list[dict[str, Any]]) -> None:
    """Accepted and rejected drafts a step as bars on each other, the acceptance rate as a line."""
    figure, (axis,) = axes(1, (7, 4))
    places = [row["threshold"] for row in sweep]
    accepted = [row["accepted"] for row in sweep]
    axis.bar(places, accepted, width=0.07, label="accepted")
    axis.bar(
        places, [row["rejected"] for row in sweep], width=0.07, bottom=accepted, label="rejected", alpha=0.6
    )
    axis.set(xlabel="confidence threshold", ylabel="drafts a step", xticks=places)
    rate = axis.twinx()
    known = [
        (row["threshold"], row["acceptance_rate"]) for row in sweep if row["acceptance_rate"] is not None
    ]
    rate.plot(
        [t for t, _ in known], [r for _, r in known], color="black", marker="o", label="acceptance rate"
    )
    rate.set(ylabel="acceptance rate", ylim=(0, 1.02))
    axis.grid(alpha=0.3, axis="y")
    figure.legend(loc="outside upper center", ncols=3)
    save(figure, path)
