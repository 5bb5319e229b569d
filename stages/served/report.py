"""The report of an evaluation of a server: summary.json, summary.md with its plots, report.html, and the last screen.

The summary is that of an evaluation in process, so that reports and pages read both. What the engine does not tell is
None there, and a dash in the tables. With a ``promised`` evaluation each benchmark has two rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from data_specs.evaluation import DRAFT, read_rounds
from data_specs.manifest import read_json, write_json
from data_specs.served import read_answers
from pipeline.http_client import ServerError
from pipeline.report import served
from pipeline.report.evaluation import Evaluation, in_the_making
from pipeline.report.figures import total
from pipeline.report.markdown import write_markdown
from pipeline.report.page import write_html
from pipeline.report.screen import show_evaluation
from pipeline.report.summary import MARKDOWN, SUMMARY, EvaluationFacts, by_benchmark, summarise
from pipeline.store.artifacts import Artifact, Store, Work
from stages.served.counted import figures, longest


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
    trained: dict[str, int] | None = None  # of them those that the draft was trained on; None: not known


def write_report(
    work: Work, store: Store, facts: ServedFacts, promised: Artifact | None, resamples: int
) -> dict[str, Any]:
    """Make the report's files in the working folder from its answers; returns what summary.json holds.

    Raises ``ServerError`` where the server drafted nothing at all.
    """
    folder = work.path
    result = _summary(read_answers(folder), facts, resamples)
    if not total(result, "drafted"):
        raise ServerError(f"{facts.server}: not one token was drafted: was the server started with a draft?")
    if promised is not None:
        told = promised_summary(promised, result["order"], resamples)
        made = {name: getattr(promised.manifest, name) for name in served.TOLD if name != "summary"}
        result["served"]["promised"] = made | {"reference": promised.reference, "summary": told}
        _compare_answers(result, read_answers(folder), promised)
    write_json(folder / SUMMARY, result)
    evaluation = in_the_making(work, result, store)
    write_markdown(folder / MARKDOWN, evaluation.title, served.figures(evaluation))
    write_html(folder, [evaluation])
    return result


def _summary(answers: pa.Table, facts: ServedFacts, resamples: int) -> dict[str, Any]:
    """Counts and metrics of every benchmark and their macro average."""
    positions = longest(answers)
    found = by_benchmark(answers, facts.prompts, lambda part, seed: figures(part, positions, resamples, seed))
    drafted = [row for row in answers.to_pylist() if row["mode"] == DRAFT]
    told = {
        "steps_told": all(row["drafts"] is not None for row in drafted),
        "past_end": sum(bool(set(row["tokens"][:-1]) & set(facts.eos)) for row in drafted),
        "promised": None,
    }
    shown = {name: value for name, value in vars(facts).items() if name != "eos"}
    return {"facts": shown, "positions": positions, "context": [], "served": told} | found


def promised_summary(promised: Artifact, order: list[str], resamples: int) -> dict[str, Any]:
    """What the summary of ``promised`` says of the benchmarks of ``order``; the average is of these alone."""
    told = read_json(promised.path / SUMMARY)
    facts = told["facts"] | {"prompts": {name: told["facts"]["prompts"][name] for name in order}}
    macro = told["macro"]
    if set(told["order"]) != set(order):
        rounds = read_rounds(promised.path)
        rounds = rounds.filter(pc.is_in(rounds["benchmark"], pa.array(order)))
        macro = summarise(rounds, EvaluationFacts(**facts), told["positions"], resamples)["macro"]
    benchmarks = {name: told["benchmarks"][name] for name in order}
    known = {"facts": facts, "positions": told["positions"]}
    return known | {"order": order, "benchmarks": benchmarks, "macro": macro}


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


def show(artifact: Artifact) -> None:
    """The last screen, from the stored summary: tables, artifact, and what to type next."""
    one = Evaluation(artifact.reference, read_json(artifact.path / SUMMARY), artifact.manifest.created)
    show_evaluation("Evaluation of a server", served.figures(one), artifact, "every answer")
