"""Sections on the confidence head: calibration before and after, and the sweep of its threshold."""

from __future__ import annotations

from collections.abc import Sequence

from data_specs.results.summary import CalibrationEffect, Figure, PositionQuality, SweepRow
from pipeline.report.evaluation import Evaluation
from pipeline.report.model import (
    EVERYWHERE,
    SCREEN,
    Axis,
    Block,
    Cell,
    Drawing,
    Drawings,
    Lines,
    Metric,
    Note,
    PlottedPoint,
    Section,
    Series,
    Table,
    cells,
    number,
    plain,
    shares,
    titles,
    words,
)  # fmt: skip
from pipeline.report.summary import mean_error

CALIBRATION, SWEEP = "Calibration of the confidences", "Threshold sweep"
RELIABILITY_PLOT, SWEEP_PLOT = "reliability.png", "threshold_sweep.png"
QUALITY = (Metric("ECE", "ece", "{:.1%}"), Metric("Brier", "brier", "{:.3f}"), Metric("AUC", "auc", "{:.3f}"))
WHEN = ("before", "after")
COLUMNS = (
    Metric("accepted a round", "accepted"),
    Metric("rejected a round", "rejected"),
    Metric("acceptance", "acceptance_rate", "{:.1%}"),
    Metric("accepted length", "accepted_length"),
    Metric("answers from the record", "exact", "{:,}"),
    Metric("decoded anew", "anew", "{:,}"),
)


def calibration(evaluation: Evaluation) -> Section:
    """ECE, Brier score and AUC by position, and reliability diagrams, before and after scaling (paper, Fig. 6)."""
    found = evaluation.summary.calibration
    if refused := evaluation.summary.calibration_refused:
        warning = Note(f"Not calibrated: {refused}", warns=True, where=EVERYWHERE)
        return Section("calibration", CALIBRATION, [warning])
    if not found:
        text = "Not calibrated. evaluate.calibrate=true calibrates a draft that has a confidence head."
        return Section("calibration", CALIBRATION, [Note(text, absent=True)])
    fitted = (
        f"Temperatures fitted on {found.rounds:,} rounds of {found.prompts:,} held-out prompts of "
        f"{found.data}, and judged here on the rounds of the benchmarks. A prediction is the product of the "
        "confidences up to its position. ECE: expected calibration error over 20 bins."
    )
    drawn = (
        "Observed against predicted share of accepted drafts, by bins. Larger signs hold more rounds. On the "
    )
    drawn += "diagonal, both are equal."
    known = [k for k, quality in enumerate(found.before) if quality.rounds]
    both = [f"{name} {when}" for name in titles(QUALITY) for when in WHEN]
    rows = [_quality_row(k, found) for k in range(len(found.temperatures))]
    columns = ("position", "rounds", "temperature", *both)
    blocks: list[Block] = [
        Note(fitted, where=EVERYWHERE),
        errors([evaluation], (SCREEN,)),
        Table("Quality of the predictions by position", columns, rows),
    ]
    if known:
        charts, legend = [_reliability(k, found) for k in known], [(1, "before"), (0, "after")]
        blocks += [Note(drawn), Drawings(charts, legend, "small", RELIABILITY_PLOT)]
    return Section("calibration", CALIBRATION, blocks)


def errors(evaluations: Sequence[Evaluation], where: Sequence[str]) -> Table:
    """Calibration error by position, before and after scaling, of the calibrated ones of ``evaluations``."""
    longest, several = max(one.positions for one in evaluations), len(evaluations) > 1
    rows = []
    for one in evaluations:
        if found := one.summary.calibration:
            name, label = [words(one.label)] * several, one.label if several else ""
            for when in WHEN:
                average = words(number(Figure(mean_error(found, when), None), "{:.1%}"))
                at = [
                    cells(f"calibration/{when}/{k}", q, QUALITY[:1], label)[0] if q.rounds else words(None)
                    for k, q in enumerate(getattr(found, when))
                ]
                rows.append([*name, words(when), average, *at, *[words(None)] * (longest - len(at))])
    heads = [*["evaluation"] * several, "scaling", "mean", *(f"k = {k + 1}" for k in range(longest))]
    return Table("Expected calibration error by position (ECE)", heads, rows, names=1 + several, where=where)


def in_a_line(found: CalibrationEffect) -> str:
    """The calibration error before and after scaling, on average and by position, as one line of text."""
    pairs = [
        " -> ".join(number(Figure(quality.ece, None), "{:.1%}") for quality in pair)
        for pair in zip(found.before, found.after, strict=True)
        if pair[0].rounds
    ]
    means = " -> ".join(number(Figure(mean_error(found, when), None), "{:.1%}") for when in WHEN)
    return f"calibrated confidence: ECE {means} on average, by position {', '.join(pairs)}"


def _quality_row(k: int, found: CalibrationEffect) -> list[Cell]:
    rounds = found.before[k].rounds
    row = [words(k + 1), plain(f"calibration/before/{k}/rounds", rounds)]
    row.append(plain(f"calibration/temperatures/{k}", found.temperatures[k], "{:.2f}"))
    if not rounds:  # no errors are known without rounds
        return row + [words(None)] * len(QUALITY) * len(WHEN)
    both = [cells(f"calibration/{when}/{k}", getattr(found, when)[k], QUALITY) for when in WHEN]
    return row + [cell for pair in zip(*both, strict=True) for cell in pair]


def _reliability(k: int, found: CalibrationEffect) -> Drawing:
    drawn = [_bins(when, style, getattr(found, when)[k]) for when, style in (("before", 1), ("after", 0))]
    x, y = (Axis(label, (0.0, 0.5, 1.0)) for label in ("predicted", "observed"))
    return Lines(f"Position {k + 1}", drawn, x, y, diagonal=True, small=True)


def _bins(label: str, style: int, quality: PositionQuality) -> Series:
    """One point per bin that holds rounds; its area grows with their number."""
    most = max(*quality.counts, 1)
    points = []
    for x, y, count in zip(quality.predicted, quality.observed, quality.counts, strict=True):
        if count and x is not None and y is not None:
            text = f"{label}: {x:.3f} predicted, {y:.3f} observed, {count} rounds"
            points.append(PlottedPoint(x, y, size=1.5 + 2.5 * (count / most) ** 0.5, text=text))
    return Series(label, style, points, loose=True)  # a line would jump between bins of a few rounds


def sweep(evaluation: Evaluation) -> Section:
    """Accepted and rejected drafts per round and the acceptance rate by confidence threshold (paper, Fig. 5)."""
    found = evaluation.summary.sweep
    if not found:
        text = "No threshold sweep. evaluate.sweep=true makes it for a draft with a confidence head."
        return Section("sweep", SWEEP, [Note(text, absent=True)])
    places = Axis("confidence threshold")
    drafts = [_line(found, key, style) for style, key in enumerate(("accepted", "rejected"))]
    rates = [_line(found, "acceptance_rate", 0)]
    charts = [
        Lines("Drafts a round", drafts, places, Axis("drafts a round")),
        Lines("Acceptance rate", rates, places, shares("accepted of verified")),
    ]
    scale = "calibrated" if evaluation.summary.calibration else "raw"
    note = Note(
        f"Thresholds apply to {scale} confidences. Answers that a threshold does not change are counted from the "
        "record; the others were decoded again."
    )
    drawn = Drawings(charts, [(one.style, one.label) for one in drafts], file=SWEEP_PLOT)
    rows = [[words(f"{r.threshold:.1f}"), *cells(f"sweep/{n}", r, COLUMNS)] for n, r in enumerate(found)]
    columns = ("threshold", *titles(COLUMNS))
    table = Table(f"Thresholds on {scale} confidences", columns, rows, where=EVERYWHERE)
    return Section("sweep", SWEEP, [drawn, table, note])


def _line(found: list[SweepRow], key: str, style: int) -> Series:
    label = key.replace("_", " ")
    known = [(row.threshold, getattr(row, key)) for row in found if getattr(row, key) is not None]
    return Series(label, style, [PlottedPoint(x, y, text=f"{label} at {x:g}: {y:.3f}") for x, y in known])
