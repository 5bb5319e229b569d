"""The report of a comparison: comparison.json, comparison.md, plots, and the last screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_specs.manifest import read_json, write_json
from pipeline import console
from pipeline.report.markdown import markdown_table
from pipeline.report.model import MACRO, number, with_interval
from pipeline.report.shared import axes, line, save
from pipeline.store.artifacts import Artifact

RESULT, MARKDOWN = "comparison.json", "comparison.md"
CONDITIONAL_PLOT = "comparison_conditional.png"
LENGTH = "accepted length (bonus counted)"
SPEED_COLUMNS = (
    ("acceptance", "acceptance_rate", "{:.0%}"),
    ("drafts a round", "drafted_length", "{:.2f}"),
    ("draft ms", "draft_ms", "{:.1f}"),
    ("verify ms", "verify_ms", "{:.1f}"),
    ("tokens/s", "tokens_per_second", "{:.1f}"),
)

Table = tuple[str, Sequence[str], list[list[str]]]  # title, columns, rows


def write_report(folder: Path, result: dict[str, Any]) -> None:
    """Write ``result`` (of run.py) into ``folder``: as JSON, as Markdown, and as plots."""
    write_json(folder / RESULT, result)
    (folder / MARKDOWN).write_text(markdown(result))
    _plot_conditional(folder / CONDITIONAL_PLOT, result["table"])
    for name, figure in result["figures"].items():
        _plot_figure(folder / figure_file(name), figure)


def figure_file(name: str) -> str:
    """File name of the plot of a figure."""
    return f"comparison_{name}.png"


# --- text -------------------------------------------------------------------------------------------------


def length_table(table: dict[str, Any]) -> Table:
    """Accepted length by benchmark and drafter."""
    rows = [
        [name, str(row["prompts"]), *(with_interval(row["accepted_length"][d]) for d in table["drafters"])]
        for name, row in _rows(table)
    ]
    return "Table 1: accepted length", ("benchmark", "prompts", *table["drafters"]), rows


def ratio_table(table: dict[str, Any]) -> Table:
    """The drafters' accepted lengths as multiples of the first one's."""
    reference, *others = table["drafters"]
    rows = [[name, *(with_interval(row["ratio"][d]) for d in others)] for name, row in _rows(table)]
    title = f"Accepted length as a multiple of {reference}'s (paired bootstrap over the same prompts)"
    return title, ("benchmark", *others), rows


def speed_table(table: dict[str, Any]) -> Table:
    """Macro averages of what it costs and brings, a row a drafter."""
    rows = []
    for drafter in table["drafters"]:
        speed = table["speed"][drafter]
        cells = [number(speed[key], form) for _, key, form in SPEED_COLUMNS]
        rows.append([drafter, *cells, with_interval(speed["speedup"])])
    return f"Speed ({MACRO})", ("drafter", *(title for title, _, _ in SPEED_COLUMNS), "speedup"), rows


def conditional_table(table: dict[str, Any]) -> Table:
    """Conditional acceptance by position, a row a drafter."""
    found = table["conditional"]
    positions = max(len(figures) for figures in found.values())
    rows = [
        [d, *(number(f, "{:.2f}") for f in found[d]), *["-"] * (positions - len(found[d]))]
        for d in table["drafters"]
    ]
    title = "Fig. 2: acceptance of position k where all before it were accepted (all prompts together)"
    return title, ("drafter", *map(str, range(1, positions + 1))), rows


def figure_tables(figure: dict[str, Any]) -> list[Table]:
    """Accepted length of a figure, and the share of the left-to-right part where it was measured."""
    columns = (figure["key"], *map(str, figure["values"]))
    lengths = [[d, *map(with_interval, figure["accepted_length"][d])] for d in figure["drafters"]]
    title = f"{figure['title']} ({MACRO} of {figure['prompts']} prompts)"
    if figure["latency"] is None:
        return [(title, columns, lengths)]
    latencies = [[d, *map(_latency, figure["latency"][d])] for d in figure["drafters"]]
    return [
        (title, columns, lengths),
        ("What goes from left to right: its share of a draft step's time", columns, latencies),
    ]


def variant_table(result: dict[str, Any]) -> Table:
    """What was trained, in the order of training."""
    rows = []
    for name in result["order"]:
        v = result["variants"][name]
        heldout = "-" if v["heldout_length"] is None else f"{v['heldout_length']:.2f}"
        rows.append([name, v["draft"], v["evaluation"], f"{v['trainable']:,}", heldout])
    columns = ("variant", "draft", "evaluation", "trained parameters", "held-out length")
    return "Variants", columns, rows


def notes(result: dict[str, Any]) -> list[str]:
    """What the tables do not say: data, steps, sampler, intervals."""
    facts = result["facts"]
    sampler = ", ".join(f"{name} {value}" for name, value in facts["sampler"].items() if value is not None)
    return [
        f"target {facts['target']}; cache {facts['cache']}; every variant: {facts['steps']} steps of "
        f"{facts['global_batch']} sequences with {facts['anchors']} blocks each, seed {facts['seed']}",
        f"sampler: {sampler}; at most {facts['max_new_tokens']} new tokens; {facts['device']}, {facts['dtype']}, "
        "batch of one",
        "accepted length = tokens emitted / rounds, the bonus token counted; in brackets: 95 % bootstrap interval "
        "over prompts",
        "a table or figure counts the prompts that all of its variants answered",
    ]


def markdown(result: dict[str, Any]) -> str:
    """The report as Markdown, with headings of the second level: it can be pasted into a document."""
    table, facts = result["table"], result["facts"]
    parts = [f"## Drafters on {facts['target']}", "\n".join(f"- {text}" for text in notes(result))]
    parts += [_text(t) for t in (length_table(table), ratio_table(table), speed_table(table))]
    parts += [_text(conditional_table(table)), f"![conditional acceptance]({CONDITIONAL_PLOT})"]
    for name in result["figure_order"]:
        figure = result["figures"][name]
        parts += [*map(_text, figure_tables(figure)), f"![{figure['title']}]({figure_file(name)})"]
    return "\n\n".join([*parts, _text(variant_table(result))]) + "\n"


def show(artifact: Artifact) -> None:
    """The last screen, from the stored result: tables, artifact, and what to type next."""
    result = read_json(artifact.path / RESULT)
    tables = [length_table, ratio_table, speed_table, conditional_table]
    shown = [made(result["table"]) for made in tables]
    shown += [t for name in result["figure_order"] for t in figure_tables(result["figures"][name])]
    for title, columns, rows in shown:
        console.table(title, columns, rows)
    for text in notes(result):
        console.say(f"  {text}")
    console.panel(
        "Comparison",
        [
            f"comparison  {artifact.reference}",
            f"folder      {artifact.path}",
            f"report      {artifact.path / MARKDOWN} (plots beside it; docs/results.md says how to read them)",
            "next        python -m pipeline stage=list   (the draft and the evaluation of every variant)",
        ],
    )


def _rows(table: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, table["rows"][name]) for name in table["order"]]


def _latency(found: dict[str, float]) -> str:
    return f"{100 * found['share']:.0f} % of {found['draft_ms']:.1f} ms"


def _text(table: Table) -> str:
    title, columns, rows = table
    return f"### {title}\n\n{markdown_table(columns, rows)}"


# --- plots ------------------------------------------------------------------------------------------------


def _plot_conditional(path: Path, table: dict[str, Any]) -> None:
    """Conditional acceptance by position, a line a drafter."""
    figure, (axis,) = axes(1, (6, 4))
    for drafter in table["drafters"]:
        found = table["conditional"][drafter]
        line(axis, range(1, len(found) + 1), found, drafter)
    positions = range(1, 1 + max(len(found) for found in table["conditional"].values()))
    axis.set(xlabel="position k in the block", xticks=positions)
    axis.set(title="P(accepted >= k | reached k)", ylim=(0, 1.02))
    axis.grid(alpha=0.3)
    axis.legend()
    save(figure, path)


def _plot_figure(path: Path, found: dict[str, Any]) -> None:
    """Accepted length over the figure's values, and beside it the share of the left-to-right part."""
    shares = found["latency"]
    figure, panels = axes(1 if shares is None else 2, (6 if shares is None else 11, 4))
    for drafter in found["drafters"]:
        line(panels[0], found["values"], found["accepted_length"][drafter], drafter)
    panels[0].set(title=found["title"], ylabel=LENGTH)
    if shares is not None:
        for drafter in found["drafters"]:
            told = [{"value": found["share"], "interval": None} for found in shares[drafter]]
            line(panels[1], found["values"], told, drafter)
        panels[1].set(title="left-to-right part of a draft step", ylabel="share of its time", ylim=(0, None))
    for panel in panels:
        panel.set(xlabel=found["key"], xticks=found["values"])
        panel.grid(alpha=0.3)
        panel.legend()
    save(figure, path)
