"""The report of an evaluation: summary.json, summary.md, plots, and the last screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from data_specs.evaluation import DRAFT, read_rounds
from data_specs.manifest import read_json, write_json
from pipeline import console
from pipeline.acceptance import average, by_context, figures, summary
from pipeline.decoding import profiling
from pipeline.report import confidence_text as confidence
from pipeline.report.page import PAGE
from pipeline.report.shared import MACRO, axes, line, markdown_table, number, save, share, with_interval
from pipeline.store.artifacts import Artifact

SUMMARY, MARKDOWN = "summary.json", "summary.md"
POSITIONS_PLOT, LENGTH_PLOT = "acceptance_by_position.png", "accepted_length.png"
COLUMNS = (
    "benchmark", "prompts", "accepted length", "acceptance", "acceptance by position", "tokens/s", "plain",
    "speedup",
)  # fmt: skip
WIDE = 120  # columns of a screen that the whole table fits on; on a smaller one it is shown in two parts
NARROW = (
    ("benchmark", "accepted length", "tokens/s", "plain", "speedup"),
    ("benchmark", "prompts", "acceptance", "acceptance by position"),
)


@dataclass(frozen=True)
class EvaluationFacts:
    """What was evaluated, and how: recorded in the summary, shown under the table."""

    draft: str
    target: str
    sampler: dict[str, Any]  # as it acts: Sampler.effective()
    threshold: float
    max_new_tokens: int
    thinking: bool | None
    device: str
    dtype: str
    prompts: dict[str, int]  # selected, by benchmark
    batch: int = 1  # prompts at a time


def write_report(
    folder: Path,
    facts: EvaluationFacts,
    positions: int,
    resamples: int,
    sections: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Make the report's files in ``folder`` from its rounds; returns what summary.json holds.

    ``positions`` is the draft's block size, ``resamples`` the number of bootstrap draws over prompts; ``sections`` what
    else the summary holds (``calibration``, ``sweep``: see report_confidence.py).
    """
    result = summarise(read_rounds(folder), facts, positions, resamples) | (sections or {})
    write_json(folder / SUMMARY, result)
    (folder / MARKDOWN).write_text(markdown(result))
    plot_positions(folder / POSITIONS_PLOT, result)
    plot_lengths(folder / LENGTH_PLOT, result)
    confidence.plots(folder, result)
    return result


def summarise(rounds: pa.Table, facts: EvaluationFacts, positions: int, resamples: int) -> dict[str, Any]:
    """Counts and metrics of every benchmark, their macro average, and the same by context length."""
    benchmarks: dict[str, Any] = {}
    parts = []
    for seed, (name, selected) in enumerate(facts.prompts.items()):
        part = rounds.filter(pc.equal(rounds["benchmark"], name))
        if part.num_rows == 0:
            benchmarks[name] = {"counts": {"prompts": 0, "too_long": selected}, "metrics": None, "finish": {}}
            continue
        found = figures(part, positions, resamples, seed)  # benchmarks are resampled independently
        parts.append(found)
        counts = {"prompts": found.prompts, "too_long": selected - found.prompts} | found.counts
        benchmarks[name] = {"counts": counts, "metrics": summary(found.metrics), "finish": finishes(part)}
    return {
        "facts": vars(facts),
        "positions": positions,
        "order": list(benchmarks),  # as asked for: JSON objects are written with sorted keys
        "benchmarks": benchmarks,
        "macro": summary(average(parts)) if parts else None,
        "context": _contexts(rounds, positions, resamples),
        "calibration": None,
        "sweep": None,
    }


def finishes(rounds: pa.Table) -> dict[str, int]:
    """How many answers made with the draft ended by EOS, and how many at the length limit."""
    drafted = rounds.filter(pc.equal(rounds["mode"], DRAFT))
    counted = drafted["finish"].drop_null().value_counts().to_pylist()
    return {item["values"]: item["counts"] for item in counted}


def _contexts(rounds: pa.Table, positions: int, resamples: int) -> list[dict[str, Any]]:
    shown = ("accepted_length", "acceptance_rate", "draft_ms", "verify_ms")
    return [
        {"from": low, "to": high, "prompts": f.prompts, "rounds": f.counts["rounds"]}
        | {name: value for name, value in summary(f.metrics).items() if name in shown}
        for low, high, f in by_context(rounds, positions, resamples)
    ]


# --- text -------------------------------------------------------------------------------------------------


def table_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Cells of ``COLUMNS`` for every benchmark and, with several, their macro average."""
    found = {name: result["benchmarks"][name] for name in result["order"]}
    rows = [_cells(name, str(b["counts"]["prompts"]), b["metrics"]) for name, b in found.items()]
    if len(rows) > 1:
        rows.append(_cells(MACRO, str(sum(b["counts"]["prompts"] for b in found.values())), result["macro"]))
    return rows


def _cells(name: str, prompts: str, metrics: dict[str, Any] | None) -> tuple[str, ...]:
    if metrics is None:
        return (name, prompts, *("-" for _ in COLUMNS[2:]))
    return (
        name,
        prompts,
        with_interval(metrics["accepted_length"]),
        share(metrics["acceptance_rate"]),
        " ".join(number(figure, "{:.2f}").lstrip("0") for figure in metrics["survival"]),
        number(metrics["tokens_per_second"], "{:.1f}"),
        number(metrics["plain_tokens_per_second"], "{:.1f}"),
        with_interval(metrics["speedup"]),
    )


def footnotes(result: dict[str, Any]) -> list[str]:
    """What the table does not say: sampler, intervals, equality with plain answers, cut answers."""
    facts = result["facts"]
    sampler = ", ".join(f"{name} {value}" for name, value in facts["sampler"].items() if value is not None)
    threshold = f"threshold {facts['threshold']}"
    if facts["threshold"] and result.get("calibration"):
        threshold += " on calibrated confidences"
    lines = [
        f"sampler: {sampler}; {threshold}; at most {facts['max_new_tokens']} new tokens; "
        f"thinking {facts['thinking']}; {facts['device']}, {facts['dtype']}, {_batch(facts.get('batch', 1))}",
        "accepted length = tokens emitted / rounds, the bonus token counted; acceptance by position k = "
        "share of rounds that accept at least k drafts; in brackets: 95 % bootstrap interval over prompts",
    ]
    benchmarks = result["benchmarks"].values()
    same = [b["metrics"]["same_answers"]["value"] for b in benchmarks if b["metrics"]]
    if facts["sampler"]["temperature"] == 0 and same and None not in same:
        lines.append(
            f"answers equal to plain decoding: {sum(same) / len(same):.1%} "
            "(expected: all in float32; in bfloat16 they part at near-ties)"
        )
    cut = sum(b["finish"].get("length", 0) for b in benchmarks)
    answers = sum(b["counts"].get("answers", 0) for b in benchmarks)
    lines.append(f"answers cut at the length limit: {cut} of {answers}")
    lines += confidence.footnotes(result)
    too_long = sum(b["counts"]["too_long"] for b in benchmarks)
    return lines + ([f"prompts longer than the target's context, left out: {too_long}"] if too_long else [])


def _batch(prompts: int) -> str:
    """How many prompts were answered at a time, and what that makes of the seconds."""
    if prompts == 1:
        return "batch of one"
    return f"{prompts} prompts at a time (a step's time is shared among them: tokens/s are of all together)"


def markdown(result: dict[str, Any]) -> str:
    """The report as Markdown: main table, time and verification, conditional acceptance, context lengths."""
    facts = result["facts"]
    parts = [
        f"# {facts['draft']} on {facts['target']}",
        markdown_table(COLUMNS, table_rows(result)),
        "\n".join(f"- {text}" for text in footnotes(result)),
        "## Time and verification",
        markdown_table(("benchmark", *(title for title, _, _ in DETAILS)), _detail_rows(result)),
        "## Conditional acceptance: P(accepted >= k | accepted >= k - 1, proposed >= k)",
        markdown_table(
            ("benchmark", *map(str, range(1, result["positions"] + 1))), _conditional_rows(result)
        ),
        "## By context length",
        markdown_table(
            ("positions", "prompts", "rounds", "accepted length", "acceptance rate"), _context_rows(result)
        ),
        f"![acceptance by position]({POSITIONS_PLOT})\n\n![accepted length]({LENGTH_PLOT})",
        *confidence.markdown(result),
        *profiling.markdown(result),
    ]
    return "\n\n".join(parts) + "\n"


DETAILS = (
    ("verify rate", "verify_rate", "{:.2f}"),
    ("drafts a round", "drafted_length", "{:.2f}"),
    ("draft ms", "draft_ms", "{:.1f}"),
    ("verify ms", "verify_ms", "{:.1f}"),
    ("draft share", "draft_share", "{:.0%}"),
    ("verify share", "verify_share", "{:.0%}"),
    ("same answers", "same_answers", "{:.1%}"),
)


def _named_metrics(result: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(name, metrics) of the benchmarks that have any."""
    metrics = {name: result["benchmarks"][name]["metrics"] for name in result["order"]}
    return [(name, found) for name, found in metrics.items() if found is not None]


def _detail_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (name, *(number(metrics[key], form) for _, key, form in DETAILS))
        for name, metrics in _named_metrics(result)
    ]


def _conditional_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (name, *(number(figure, "{:.2f}") for figure in metrics["conditional"]))
        for name, metrics in _named_metrics(result)
    ]


def _context_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for bucket in result["context"]:
        positions = f"{bucket['from']:,} - " + (f"{bucket['to'] - 1:,}" if bucket["to"] else "")
        figures = (with_interval(bucket["accepted_length"]), share(bucket["acceptance_rate"]))
        rows.append((positions, str(bucket["prompts"]), str(bucket["rounds"]), *figures))
    return rows


def show(artifact: Artifact) -> None:
    """The last screen, from the stored summary: table, artifact, and what to type next."""
    result = read_json(artifact.path / SUMMARY)
    facts = result["facts"]
    show_tables(f"{facts['draft']} on {facts['target']}", table_rows(result))
    confidence.show(result)
    profiling.show(result)
    for text in footnotes(result):
        console.say(f"  {text}")
    console.panel(
        "Evaluation",
        [
            f"evaluation  {artifact.reference}",
            f"folder      {artifact.path}",
            f"report      {artifact.path / PAGE} (opens in any browser; {SUMMARY} and every round beside it)",
            f"next        python -m pipeline stage=report evaluations={artifact.reference},OTHER   (side by side)",
            "            python -m pipeline stage=list",
        ],
    )


def show_tables(
    title: str,
    rows: Sequence[tuple[str, ...]],
    columns: Sequence[str] = COLUMNS,
    narrow: Sequence[Sequence[str]] = NARROW,
    wide: int = WIDE,
) -> None:
    """One table; on a screen of less than ``wide`` two with the columns of ``narrow``, so that no line is folded."""
    for chosen in [columns] if console.console.width >= wide else narrow:
        places = [columns.index(column) for column in chosen]
        console.table(title, chosen, [[row[place] for place in places] for row in rows])


def flat_metrics(result: dict[str, Any]) -> dict[str, float]:
    """``<benchmark>/<metric>`` -> value of every scalar metric that has one, for a tracker."""
    named = [*_named_metrics(result), *([("macro", result["macro"])] if result["macro"] else [])]
    return {
        f"{name}/{key}": figure["value"]
        for name, metrics in named
        for key, figure in metrics.items()
        if isinstance(figure, dict) and figure["value"] is not None
    } | confidence.flat_metrics(result)


# --- plots ------------------------------------------------------------------------------------------------


def plot_positions(path: Path, result: dict[str, Any]) -> None:
    """Survival and conditional acceptance by position, a line a benchmark, intervals shaded."""
    figure, panels = axes(2, (10, 4))
    for axis, key, title in zip(
        panels, ("survival", "conditional"), ("P(accepted >= k)", "P(accepted >= k | reached k)"), strict=True
    ):
        for name, metrics in _named_metrics(result):
            line(axis, range(1, len(metrics[key]) + 1), metrics[key], name)
        positions = range(1, result["positions"] + 1)
        axis.set(title=title, xlabel="position k in the block", xticks=positions, ylim=(0, 1.02))
        axis.grid(alpha=0.3)
    panels[0].legend()
    save(figure, path)


def plot_lengths(path: Path, result: dict[str, Any]) -> None:
    """Accepted length of every benchmark with its interval."""
    named = _named_metrics(result)
    figure, (axis,) = axes(1, (1.5 + 1.3 * max(2, len(named)), 4))
    for place, (_, metrics) in enumerate(named):
        length = metrics["accepted_length"]
        if length["value"] is None:
            continue
        low, high = length["interval"] or (length["value"], length["value"])
        # A percentile interval need not hold the value itself.
        spread = [[max(0.0, length["value"] - low)], [max(0.0, high - length["value"])]]
        axis.errorbar([place], [length["value"]], yerr=spread, fmt="o", capsize=5)
    axis.set_xticks(range(len(named)), [name for name, _ in named], rotation=30, ha="right")
    axis.set(ylabel="accepted length (bonus counted)")
    axis.axhline(1, color="grey", linewidth=0.8, linestyle="--")
    axis.grid(alpha=0.3, axis="y")
    save(figure, path)
