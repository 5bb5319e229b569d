"""The report of an evaluation of a server: summary.json, summary.md with its plots, report.html, and the last screen.

The summary has the form of an in-process evaluation's, so that reports and pages read both. Figures that the engine
does not report are None there, and a dash in the tables. With the draft's own evaluation (``promised``), each benchmark
has two rows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from data_specs.evaluation import DRAFT, read_rounds
from data_specs.results.summary import (
    MARKDOWN,
    BenchmarkResult,
    EvaluationFacts,
    Promised,
    Served,
    ServedFacts,
    ServedSummary,
    Summary,
    read_summary,
    write_summary,
)
from data_specs.served import read_answers
from pipeline.http_client import ServerError
from pipeline.report import served
from pipeline.report.evaluation import Evaluation, in_the_making
from pipeline.report.figures import total
from pipeline.report.markdown import write_markdown
from pipeline.report.page import write_html
from pipeline.report.screen import show_evaluation
from pipeline.report.summary import by_benchmark, summarise
from pipeline.store.artifacts import Artifact, Store, Work
from stages.served.counted import figures, longest


def write_report(
    work: Work,
    store: Store,
    facts: ServedFacts,
    eos: Collection[int],
    promised: Artifact | None,
    resamples: int,
) -> ServedSummary:
    """Write the report into the working folder from the answers there; returns the summary.

    ``eos`` are the target's end tokens. Raises ``ServerError`` if the server drafted nothing at all.
    """
    folder = work.path
    answers = read_answers(folder)
    result = _summary(answers, facts, eos, resamples)
    if not total(result, "drafted"):
        raise ServerError(f"{facts.server}: no token was drafted; was the server started with a draft?")
    if promised is not None:
        result = _beside(result, answers, promised, resamples)
    write_summary(folder, result)
    evaluation = in_the_making(work, result, store)
    write_markdown(folder / MARKDOWN, evaluation.title, served.figures(evaluation))
    write_html(folder, [evaluation])
    return result


def _summary(answers: pa.Table, facts: ServedFacts, eos: Collection[int], resamples: int) -> ServedSummary:
    """Counts and metrics of every benchmark and their macro average."""
    positions = longest(answers)
    found = by_benchmark(answers, facts.prompts, lambda part, seed: figures(part, positions, resamples, seed))
    drafted = [row for row in answers.to_pylist() if row["mode"] == DRAFT]
    told = Served(
        steps_told=all(row["drafts"] is not None for row in drafted),
        past_end=sum(bool(set(row["tokens"][:-1]) & set(eos)) for row in drafted),
        promised=None,
    )
    return ServedSummary(facts=facts, positions=positions, served=told, **vars(found))


def _beside(result: ServedSummary, answers: pa.Table, promised: Artifact, resamples: int) -> ServedSummary:
    """``result`` with the draft's own evaluation of the same benchmarks."""
    made = promised.manifest
    summary = promised_summary(promised, result.order, resamples)
    beside = Promised(
        promised.reference, made.created, dict(made.packages), made.revision, made.fingerprint, summary
    )
    benchmarks = _compared(result, answers, promised, summary.facts)
    return replace(result, benchmarks=benchmarks, served=replace(result.served, promised=beside))


def promised_summary(promised: Artifact, order: list[str], resamples: int) -> Summary:
    """The summary of ``promised`` for the benchmarks ``order`` only, and their average."""
    told = read_summary(promised.path)
    assert isinstance(told, Summary), "the draft's own evaluation has no other summary"
    facts = replace(told.facts, prompts={name: told.facts.prompts[name] for name in order})
    macro = told.macro
    if set(told.order) != set(order):
        rounds = read_rounds(promised.path)
        rounds = rounds.filter(pc.is_in(rounds["benchmark"], pa.array(order)))
        macro = summarise(rounds, facts, told.positions, resamples).macro
    benchmarks = {name: told.benchmarks[name] for name in order}
    return Summary(facts=facts, positions=told.positions, order=order, benchmarks=benchmarks, macro=macro)


def _compared(
    result: ServedSummary, answers: pa.Table, promised: Artifact, told: EvaluationFacts
) -> dict[str, BenchmarkResult]:
    """Add the number of served answers equal to the promised ones, if greedy decoding with equal settings made both."""
    facts = result.facts
    settings = [(one.sampler, one.max_new_tokens, one.thinking) for one in (told, facts)]
    if facts.sampler["temperature"] != 0 or settings[0] != settings[1]:
        return result.benchmarks
    own: dict[tuple[str, str, int], list[int]] = {}
    rounds = read_rounds(promised.path).select(["benchmark", "key", "turn", "mode", "round", "tokens"])
    for row in sorted(rounds.to_pylist(), key=lambda row: row["round"]):
        if row["mode"] == DRAFT:
            own.setdefault((row["benchmark"], row["key"], row["turn"]), []).extend(row["tokens"])
    counts = {name: {"compared_with_promised": 0, "same_as_promised": 0} for name in result.benchmarks}
    for row in answers.to_pylist():
        mine = own.get((row["benchmark"], row["key"], row["turn"]))
        if row["mode"] == DRAFT and mine is not None:
            counts[row["benchmark"]]["compared_with_promised"] += 1
            counts[row["benchmark"]]["same_as_promised"] += row["tokens"] == mine
    return {n: replace(one, counts=one.counts | counts[n]) for n, one in result.benchmarks.items()}


def show(artifact: Artifact) -> None:
    """Print the last screen from the stored summary: tables, artifact, and what to type next."""
    one = Evaluation(artifact.reference, read_summary(artifact.path), artifact.manifest.created)
    show_evaluation("Evaluation of a server", served.figures(one), artifact, "every answer")
