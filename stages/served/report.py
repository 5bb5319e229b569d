"""The report of an evaluation of a server: summary.json, summary.md, plots, page, and the last screen.

The summary is that of an evaluation in process (report.py), so that reports and pages read both. What the engine does
not tell is None there, and a dash in the tables. With a ``promised`` evaluation each benchmark has two rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from data_specs.evaluation import DRAFT, read_rounds
from data_specs.manifest import read_json, write_json
from data_specs.served import read_answers
from pipeline import console
from pipeline.acceptance import average, summary
from pipeline.http_client import ServerError
from pipeline.report import evaluation_text as report
from pipeline.report.evaluation import in_the_making
from pipeline.report.evaluation_text import (
    COLUMNS,
    LENGTH_PLOT,
    MARKDOWN,
    POSITIONS_PLOT,
    SUMMARY,
    finishes,
    plot_lengths,
    plot_positions,
    show_tables,
    table_rows,
)
from pipeline.report.page import PAGE, write_html
from pipeline.report.served import PROMISED, SERVED, TOLD, WORDS
from pipeline.report.shared import MACRO, markdown_table
from pipeline.store.artifacts import Artifact, Store, Work
from stages.served.counted import figures, longest

BESIDE = ("benchmark", "", *COLUMNS[1:])
WIDE = 148  # columns of a screen that the whole table fits on
NARROW = (
    ("benchmark", "", "accepted length", "tokens/s", "plain", "speedup"),
    ("benchmark", "", "prompts", "acceptance", "acceptance by position"),
)
COUNTED = (
    ("answers", "answers"),
    ("tokens", "tokens"),
    ("rounds", "rounds"),
    ("drafted", "drafted"),
    ("accepted", "accepted"),
)


@dataclass(frozen=True)
class ServedFacts:
    """What was evaluated, and how: recorded in the summary, shown under the table."""

    draft: str
    target: str
    sampler: dict[str, Any]  # as it acts: Sampler.effective()
    max_new_tokens: int
    thinking: bool | None
    device: str  # the engine and its version
    dtype: str
    server: str
    model: str
    plain_server: str | None
    plain_model: str | None
    note: str | None
    prompts: dict[str, int]  # selected, by benchmark
    eos: list[int]


def write_report(
    work: Work, store: Store, facts: ServedFacts, promised: Artifact | None, resamples: int
) -> dict[str, Any]:
    """Make the report's files in the working folder from its answers; returns what summary.json holds.

    Raises ``ServerError`` where the server drafted nothing at all.
    """
    folder = work.path
    result = summarise(read_answers(folder), facts, resamples)
    if not sum(b["counts"].get("drafted", 0) for b in result["benchmarks"].values()):
        raise ServerError(f"{facts.server}: not one token was drafted: was the server started with a draft?")
    if promised is not None:
        told = promised_summary(promised, result["order"], resamples)
        made = {name: getattr(promised.manifest, name) for name in TOLD if name != "summary"}
        result["served"]["promised"] = made | {"reference": promised.reference, "summary": told}
        _compare_answers(result, read_answers(folder), promised)
    write_json(folder / SUMMARY, result)
    (folder / MARKDOWN).write_text(markdown(result))
    if result["positions"]:
        plot_positions(folder / POSITIONS_PLOT, result)
    plot_lengths(folder / LENGTH_PLOT, result)
    write_html(folder, [in_the_making(work, result, store)])
    return result


def summarise(answers: pa.Table, facts: ServedFacts, resamples: int) -> dict[str, Any]:
    """Counts and metrics of every benchmark and their macro average."""
    positions = longest(answers)
    benchmarks: dict[str, Any] = {}
    parts = []
    for seed, (name, selected) in enumerate(facts.prompts.items()):
        part = answers.filter(pc.equal(answers["benchmark"], name))
        if part.num_rows == 0:
            benchmarks[name] = {"counts": {"prompts": 0, "too_long": selected}, "metrics": None, "finish": {}}
            continue
        found = figures(part, positions, resamples, seed)  # benchmarks are resampled independently
        parts.append(found)
        counts = {"prompts": found.prompts, "too_long": selected - found.prompts} | found.counts
        benchmarks[name] = {"counts": counts, "metrics": summary(found.metrics), "finish": finishes(part)}
    drafted = [row for row in answers.to_pylist() if row["mode"] == DRAFT]
    return {
        "facts": {name: value for name, value in vars(facts).items() if name != "eos"},
        "positions": positions,
        "order": list(benchmarks),
        "benchmarks": benchmarks,
        "macro": summary(average(parts)) if parts else None,
        "context": [],
        "calibration": None,
        "sweep": None,
        "served": {
            "steps_told": all(row["drafts"] is not None for row in drafted),
            "past_end": sum(bool(set(row["tokens"][:-1]) & set(facts.eos)) for row in drafted),
            "promised": None,
        },
    }


def promised_summary(promised: Artifact, order: list[str], resamples: int) -> dict[str, Any]:
    """What the summary of ``promised`` says of the benchmarks of ``order``; the average is of these alone."""
    told = read_json(promised.path / SUMMARY)
    facts = told["facts"] | {"prompts": {name: told["facts"]["prompts"][name] for name in order}}
    macro = told["macro"]
    if set(told["order"]) != set(order):
        rounds = read_rounds(promised.path)
        rounds = rounds.filter(pc.is_in(rounds["benchmark"], pa.array(order)))
        macro = report.summarise(rounds, report.EvaluationFacts(**facts), told["positions"], resamples)[
            "macro"
        ]
    benchmarks = {name: told["benchmarks"][name] for name in order}
    return {
        "facts": facts,
        "positions": told["positions"],
        "order": order,
        "benchmarks": benchmarks,
        "macro": macro,
    }


def _compare_answers(result: dict[str, Any], answers: pa.Table, promised: Artifact) -> None:
    """Count the served answers that are those of the promised evaluation, where both were to be the same."""
    told, facts = result["served"]["promised"]["summary"]["facts"], result["facts"]
    same = ("sampler", "max_new_tokens", "thinking")
    if facts["sampler"]["temperature"] != 0 or any(told.get(name) != facts[name] for name in same):
        return
    own: dict[tuple[str, str, int], list[int]] = {}
    rounds = read_rounds(promised.path).select(["benchmark", "key", "turn", "mode", "round", "tokens"])
    for row in sorted(rounds.to_pylist(), key=lambda row: row["round"]):
        if row["mode"] == DRAFT:
            own.setdefault((row["benchmark"], row["key"], row["turn"]), []).extend(row["tokens"])
    counts = {name: found["counts"] for name, found in result["benchmarks"].items()}
    for found in counts.values():
        found |= {"compared_with_promised": 0, "same_as_promised": 0}
    for row in answers.to_pylist():
        mine = own.get((row["benchmark"], row["key"], row["turn"]))
        if row["mode"] == DRAFT and mine is not None:
            counts[row["benchmark"]]["compared_with_promised"] += 1
            counts[row["benchmark"]]["same_as_promised"] += row["tokens"] == mine


# --- text -------------------------------------------------------------------------------------------------


def rows_of(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Cells of ``BESIDE``: what was promised above what is served, or the latter alone."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    beside = result["served"]["promised"]
    for label, told in ((PROMISED, beside and beside["summary"]), (SERVED, result)):
        for name, *cells in table_rows(told) if told else []:
            rows.setdefault(name, []).append((name, label, *(cell or "-" for cell in cells)))
    return [row for name in [*result["order"], MACRO] for row in rows.get(name, [])]


def footnotes(result: dict[str, Any]) -> list[str]:
    """What the table does not say: server, sampler, how counters became figures, equal and cut answers."""
    facts, served = result["facts"], result["served"]
    sampler = ", ".join(f"{name} {value}" for name, value in facts["sampler"].items() if value is not None)
    plain = (
        f"plain: {facts['plain_server']} ({facts['plain_model']})"
        if facts["plain_server"]
        else "plain: not asked"
    )
    lines = [
        f"{facts['device']} at {facts['server']} ({facts['model']}); {plain}"
        + (f"; {facts['note']}" if facts["note"] else ""),
        f"sampler: {sampler}; at most {facts['max_new_tokens']} new tokens; thinking {facts['thinking']}; one prompt "
        "at a time; in brackets: 95 % bootstrap interval over prompts",
        *WORDS,
    ]
    if not served["steps_told"]:
        lines.append(
            "the server does not tell its verification steps (llama-server --metrics does): rounds are tokens - 1 - "
            "accepted, too few by up to a block where an answer's last step was cut"
        )
    lines += [*_equal(result), *_other_settings(result)]
    cut = sum(b["finish"].get("length", 0) for b in result["benchmarks"].values())
    lines.append(f"answers cut at the length limit: {cut} of {_total(result, 'answers')}")
    if served["past_end"]:
        lines.append(
            f"answers that went on after an end token of the target: {served['past_end']} (the server ends at others)"
        )
    too_long = _total(result, "too_long")
    return lines + ([f"prompts longer than the context, left out: {too_long}"] if too_long else [])


def _equal(result: dict[str, Any]) -> list[str]:
    """How many answers are those of the plain server, and of the promised evaluation."""
    lines = []
    metrics = [b["metrics"]["same_answers"]["value"] for b in result["benchmarks"].values() if b["metrics"]]
    if result["facts"]["sampler"]["temperature"] == 0 and metrics and None not in metrics:
        lines.append(f"answers equal to the plain server's: {sum(metrics) / len(metrics):.1%}")
    if compared := _total(result, "compared_with_promised"):
        share = _total(result, "same_as_promised") / compared
        lines.append(
            f"answers equal to those of the promised evaluation: {share:.1%} of {compared} (another arithmetic parts "
            "at near-ties; few equal ones mean another model)"
        )
    return lines


def _other_settings(result: dict[str, Any]) -> list[str]:
    """In what the promised evaluation differs, beside the machine."""
    if not (beside := result["served"]["promised"]):
        return []
    names = ("sampler", "max_new_tokens", "thinking", "prompts")
    told = {name: (beside["summary"]["facts"].get(name), result["facts"][name]) for name in names}
    differ = [
        f"{name} {promised} (served: {served})"
        for name, (promised, served) in told.items()
        if promised != served
    ]
    return [f"promised with other settings: {', '.join(differ)}"] if differ else []


def _total(result: dict[str, Any], name: str) -> int:
    return sum(int(found["counts"].get(name, 0)) for found in result["benchmarks"].values())


def markdown(result: dict[str, Any]) -> str:
    """The report as Markdown: the table, what it does not say, and the engine's counters."""
    counters = [
        (name, *(f"{found['counts'].get(key, 0):,}" for _, key in COUNTED))
        for name, found in ((name, result["benchmarks"][name]) for name in result["order"])
    ]
    plots = [f"![acceptance by position]({POSITIONS_PLOT})"] if result["positions"] else []
    parts = [
        f"# {_title(result)}",
        markdown_table(BESIDE, rows_of(result)),
        "\n".join(f"- {text}" for text in footnotes(result)),
        "## Counted",
        markdown_table(("benchmark", *(title for title, _ in COUNTED)), counters),
        "\n\n".join([*plots, f"![accepted length]({LENGTH_PLOT})"]),
    ]
    return "\n\n".join(parts) + "\n"


def _title(result: dict[str, Any]) -> str:
    facts = result["facts"]
    return f"{facts['draft']} on {facts['target']}, served by {facts['device']}"


def show(artifact: Artifact) -> None:
    """The last screen, from the stored summary: table, artifact, and what to type next."""
    result = read_json(artifact.path / SUMMARY)
    show_tables(_title(result), rows_of(result), BESIDE, NARROW, WIDE)
    for text in footnotes(result):
        console.say(f"  {text}".replace("[", r"\["))
    console.panel(
        "Evaluation of a server",
        [
            f"evaluation  {artifact.reference}",
            f"folder      {artifact.path}",
            f"report      {artifact.path / PAGE} (opens in any browser; {SUMMARY} and every answer beside it)",
            f"next        python -m pipeline stage=report evaluations={artifact.reference},OTHER   (side by side)",
            "            python -m pipeline stage=list",
        ],
    )
