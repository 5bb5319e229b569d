"""Sections on the confidence head: calibration before and after, and the sweep of its threshold."""

from __future__ import annotations

from typing import Any

from pipeline.report.evaluation import Evaluation
from pipeline.report.model import Cell, Drawing, Drawings, Note, Section, Table, plain, words
from pipeline.report.svg import Axis, PlottedPoint, Series, linear, plot, shares, swatch

CALIBRATION, SWEEP = "Calibration of the confidences", "Threshold of the confidence"
QUALITY = (("ECE", "ece", "{:.1%}"), ("AUC", "auc", "{:.3f}"), ("Brier", "brier", "{:.3f}"))
WHEN = ("before", "after")
SMALL = (160, 165)  # of a reliability diagram: seven in a row on a screen, two on a phone
HALVES = (0.0, 0.5, 1.0)
FIGURES = (
    ("accepted a round", "accepted", "{:.2f}"),
    ("rejected a round", "rejected", "{:.2f}"),
    ("acceptance", "acceptance_rate", "{:.1%}"),
    ("accepted length", "accepted_length", "{:.2f}"),
)


def calibration(evaluation: Evaluation) -> Section:
    """ECE, AUC and Brier score by position and reliability diagrams, before and after scaling (paper, Fig. 6)."""
    found = evaluation.summary.get("calibration")
    if not found:
        text = "Not calibrated. evaluate.calibrate=true fits the confidences of a draft that has them."
        return Section("calibration", CALIBRATION, [Note(text, absent=True)])
    fitted = Note(
        f"Temperatures fitted on {found['rounds']:,} rounds of {found['prompts']:,} held-out prompts of "
        f"{found['data']}; judged here on the rounds of the benchmarks. A prediction is the product of the confidences "
        "up to its position. ECE: expected calibration error over 20 bins."
    )
    drawn = Note(
        "Observed share of accepted against predicted, by bins; larger signs hold more rounds. The diagonal is exact."
    )
    positions = [k for k, quality in enumerate(found["before"]) if quality["rounds"]]
    charts = Drawings(
        [_reliability(k, found) for k in positions],
        [(swatch(1), "before"), (swatch(0), "after")],
        layout="small",
    )
    return Section("calibration", CALIBRATION, [fitted, _quality_table(found), drawn, charts])


def _quality_table(found: dict[str, Any]) -> Table:
    columns = [
        "position",
        "rounds",
        "temperature",
        *(f"{name} {when}" for name, _, _ in QUALITY for when in WHEN),
    ]
    rows = [_quality_row(k, found) for k in range(len(found["temperatures"]))]
    return Table("Quality of the predictions by position", columns, rows)


def _quality_row(k: int, found: dict[str, Any]) -> list[Cell]:
    rounds = found["before"][k]["rounds"]
    row = [words(k + 1), plain(f"calibration/before/{k}/rounds", rounds)]
    row.append(plain(f"calibration/temperatures/{k}", found["temperatures"][k], "{:.2f}"))
    for _, key, form in QUALITY:
        pair = [plain(f"calibration/{when}/{k}/{key}", found[when][k][key], form) for when in WHEN]
        row += pair if rounds else [words(None)] * len(pair)  # an error of no rounds says nothing
    return row


def _reliability(k: int, found: dict[str, Any]) -> Drawing:
    drawn = [_bins(when, style, found[when][k]) for when, style in (("before", 1), ("after", 0))]
    x, y = (Axis(label, HALVES, "{:.1f}") for label in ("predicted", "observed"))
    title = f"Position {k + 1}"
    return Drawing(title, plot(f"Reliability at {title.lower()}", drawn, x, y, size=SMALL, diagonal=True))


def _bins(label: str, style: int, quality: dict[str, Any]) -> Series:
    """A point for every bin that holds a round; its area grows with their number."""
    most = max(*quality["counts"], 1)
    points = []
    for x, y, count in zip(quality["predicted"], quality["observed"], quality["counts"], strict=True):
        if count and x is not None and y is not None:
            text = f"{label}: {x:.3f} predicted, {y:.3f} observed, {count} rounds"
            points.append(PlottedPoint(x, y, size=1.5 + 2.5 * (count / most) ** 0.5, text=text))
    return Series(label, style, points, loose=True)  # a line would jump between bins of a few rounds


def sweep(evaluation: Evaluation) -> Section:
    """Accepted and rejected drafts a round and the acceptance rate by confidence threshold (paper, Fig. 5)."""
    found = evaluation.summary.get("sweep")
    if not found:
        text = "No threshold sweep. evaluate.sweep=true makes it for a draft with a confidence head."
        return Section("sweep", SWEEP, [Note(text, absent=True)])
    places = linear("threshold", [row["threshold"] for row in found], "{:.1f}")
    drafts = [_line(found, key, style) for style, key in enumerate(("accepted", "rejected"))]
    heights = linear("drafts a round", [p.y for one in drafts for p in one.points])
    titles = ("Drafts a round", "Acceptance rate")
    charts = [
        Drawing(titles[0], plot(titles[0], drafts, places, heights)),
        Drawing(
            titles[1],
            plot(titles[1], [_line(found, "acceptance_rate", 0)], places, shares("accepted of verified")),
        ),
    ]
    legend = [(swatch(style), one.label) for style, one in enumerate(drafts)]
    scale = (
        "calibrated confidences" if evaluation.summary.get("calibration") else "the confidences as they are"
    )
    note = Note(
        f"Thresholds on {scale}. Answers that a threshold leaves as they were are counted from the record; the others "
        "were decoded anew."
    )
    return Section("sweep", SWEEP, [Drawings(charts, legend), _sweep_table(found), note])


def _line(found: list[dict[str, Any]], key: str, style: int) -> Series:
    label = key.replace("_", " ")
    known = [(row["threshold"], row[key]) for row in found if row[key] is not None]
    return Series(label, style, [PlottedPoint(x, y, text=f"{label} at {x:g}: {y:.3f}") for x, y in known])


def _sweep_table(found: list[dict[str, Any]]) -> Table:
    rows = []
    for n, row in enumerate(found):
        figures = [plain(f"sweep/{n}/{key}", row[key], form) for _, key, form in FIGURES]
        answers = [plain(f"sweep/{n}/{key}", row[key]) for key in ("exact", "anew")]
        rows.append([words(f"{row['threshold']:g}"), *figures, *answers])
    columns = ("threshold", *(title for title, _, _ in FIGURES), "answers from the record", "decoded anew")
    return Table("Threshold sweep", columns, rows)
