"""Sections of one evaluation: the figures by benchmark, what a round costs, and the same by context length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.report.evaluation import Evaluation
from pipeline.report.model import Block, Cell, Drawing, Drawings, Note, Section, Table, plain, told, words
from pipeline.report.svg import intervals, linear, stacks, swatch

FIGURES = (  # column, metric, format
    ("accepted length", "accepted_length", "{:.2f}"),
    ("acceptance", "acceptance_rate", "{:.1%}"),
    ("tokens/s", "tokens_per_second", "{:.1f}"),
    ("plain tokens/s", "plain_tokens_per_second", "{:.1f}"),
    ("speedup", "speedup", "{:.2f}"),
)
COST = (
    ("drafts a round", "drafted_length", "{:.2f}"),
    ("verify rate", "verify_rate", "{:.2f}"),
    ("draft ms", "draft_ms", "{:.1f}"),
    ("verify ms", "verify_ms", "{:.1f}"),
    ("draft share", "draft_share", "{:.1%}"),
    ("verify share", "verify_share", "{:.1%}"),
)
CONTEXT = (
    ("accepted length", "accepted_length", "{:.2f}"),
    ("acceptance", "acceptance_rate", "{:.1%}"),
    ("draft ms", "draft_ms", "{:.1f}"),
    ("verify ms", "verify_ms", "{:.1f}"),
)
DRAWN = (  # title, metric, unit
    ("Accepted length", "accepted_length", "tokens a round"),
    ("Speedup", "speedup", "times plain decoding"),
)
WORDS = (
    "Accepted length: tokens emitted a round, the bonus token counted (1 without a draft). Acceptance: accepted of "
    "proposed drafts. Plain: the same prompts without the draft, in the same run. In brackets: 95 % bootstrap interval "
    "over prompts."
)
Forms = Sequence[tuple[str, str, str]]


def benchmarks(evaluation: Evaluation) -> Section:
    """The main table, and the two figures that matter most as a drawing."""
    rows = [_row(evaluation, name) for name in evaluation.summary["order"]]
    strong = frozenset[int]()
    if len(rows) > 1 and evaluation.summary["macro"]:
        strong = frozenset({len(rows)})
        prompts = sum(b["counts"]["prompts"] for b in evaluation.summary["benchmarks"].values())
        average = cells("macro", evaluation.summary["macro"], FIGURES)
        rows.append([words("macro average"), words(f"{prompts:,}"), *average])
    table = Table("Figures by benchmark", ("benchmark", "prompts", *titles(FIGURES)), rows, strong)
    charts = overview([(name, [metrics]) for name, metrics in evaluation.named.items()], [""])
    blocks: list[Block] = [table, Note(WORDS), Drawings(charts)]
    if len(charts) < len(DRAWN):
        text = "No speedup: plain decoding was not measured. evaluate.baseline=true measures it."
        blocks.append(Note(text, absent=True))
    return Section("benchmarks", "Benchmarks", blocks)


def titles(forms: Forms) -> list[str]:
    """Column headings of ``forms``."""
    return [title for title, _, _ in forms]


def cells(path: str, metrics: dict[str, Any], forms: Forms, evaluation: str = "") -> list[Cell]:
    """A cell for each of ``forms``; ``path`` is where the JSON has ``metrics``."""
    return [told(f"{path}/{key}", metrics[key], form, evaluation) for _, key, form in forms]


def _row(evaluation: Evaluation, name: str) -> list[Cell]:
    found = evaluation.summary["benchmarks"][name]
    prompts = plain(f"benchmarks/{name}/counts/prompts", found["counts"]["prompts"])
    if found["metrics"] is None:
        return [words(name), prompts, *(words(None) for _ in FIGURES)]
    return [words(name), prompts, *cells(name, found["metrics"], FIGURES)]


def overview(groups: Sequence[tuple[str, Sequence[dict[str, Any]]]], labels: Sequence[str]) -> list[Drawing]:
    """Accepted length and speedup of (name, metrics of each of ``labels``); what nobody has is left out."""
    charts = []
    for title, key, unit in DRAWN:
        found = [(name, [metrics[key] for metrics in each]) for name, each in groups]
        known = [f for _, each in found for f in each if f["value"] is not None]
        ends = [end for f in known for end in (f["value"], *(f["interval"] or ()))]
        if ends:
            charts.append(
                Drawing(title, intervals(title, found, labels, linear(unit, ends, least=1.0), at=1.0))
            )
    return charts


def cost(evaluation: Evaluation) -> Section:
    """Milliseconds and shares of drafting and verifying in a round."""
    title = "Milliseconds of a round"
    bars = [
        (name, [(part, m[f"{part}_ms"]["value"]) for part in ("draft", "verify")])
        for name, m in evaluation.named.items()
        if m["draft_ms"]["value"] is not None
    ]
    legend = [(swatch(style), part) for style, part in enumerate(("draft", "verify"))]
    rows = [[words(name), *cells(name, m, COST)] for name, m in evaluation.named.items()]
    table = Table("Cost of a round", ("benchmark", *titles(COST)), rows)
    text = "Verify rate: share of verified positions that became output."
    if (batch := evaluation.summary["facts"].get("batch", 1)) > 1:
        text += f" {batch} prompts were answered at a time; the time of a step is shared among them."
    note = Note(text)
    return Section(
        "cost",
        "Cost of a round",
        [Drawings([Drawing(title, stacks(title, bars, "ms"))], legend), table, note],
    )


def contexts(evaluation: Evaluation) -> Section:
    """The figures by context length."""
    rows = []
    for number, bucket in enumerate(evaluation.summary["context"]):
        path, low, high = f"context/{number}", bucket["from"], bucket["to"]
        name = f"{low:,} to {high - 1:,}" if high else f"{low:,} and more"
        counts = [plain(f"{path}/{key}", bucket[key]) for key in ("prompts", "rounds")]
        rows.append([words(name), *counts, *cells(path, bucket, CONTEXT)])
    columns = ("context", "prompts", "rounds", *titles(CONTEXT))
    return Section(
        "context", "By context length", [Table("Rounds by positions before the anchor", columns, rows)]
    )
