"""Sections of one evaluation: figures by benchmark, acceptance by position, the cost of a round and of a step, figures
by context length, and how many answers equal those of plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from data_specs.results.summary import (
    AnySummary,
    CostCurve,
    Facts,
    Figure,
    Metrics,
    Profile,
    VerifyTime,
)  # fmt: skip
from pipeline.report.evaluation import Evaluation
from pipeline.report.model import (
    EVERYWHERE,
    MACRO,
    TEXT,
    Axis,
    Bars,
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
    Whiskers,
    cells,
    listed,
    number,
    plain,
    powers,
    series,
    shares,
    titles,
    told,
    words,
)  # fmt: skip

BY_POSITION = "acceptance by position"
FIGURES = (
    Metric("accepted length", "accepted_length", interval=True),
    Metric("acceptance", "acceptance_rate", "{:.1%}", "{:.0%}"),
    Metric(BY_POSITION, "survival"),
    Metric("tokens/s", "tokens_per_second", "{:.1f}"),
    Metric("plain", "plain_tokens_per_second", "{:.1f}"),
    Metric("speedup", "speedup", interval=True),
)
# Columns of the two tables on a narrow screen.
NARROW = (("accepted length", "tokens/s", "plain", "speedup"), ("prompts", "acceptance", BY_POSITION))
COST = (
    Metric("drafts a round", "drafted_length"),
    Metric("verify rate", "verify_rate"),
    Metric("draft ms", "draft_ms", "{:.1f}"),
    Metric("verify ms", "verify_ms", "{:.1f}"),
    Metric("draft share", "draft_share", "{:.1%}"),
    Metric("verify share", "verify_share", "{:.1%}"),
)
CONTEXT = (
    Metric("accepted length", "accepted_length", interval=True),
    Metric("acceptance", "acceptance_rate", "{:.1%}"),
    Metric("draft ms", "draft_ms", "{:.1f}"),
    Metric("verify ms", "verify_ms", "{:.1f}"),
)
DRAWN = (  # title, metric, unit
    ("Accepted length", "accepted_length", "tokens a round"),
    ("Speedup", "speedup", "times plain decoding"),
)
KINDS = (  # metric, title, formula
    ("survival", "Survival", "P(accepted ≥ k)"),
    ("conditional", "Conditional acceptance", "P(accepted ≥ k | reached k)"),
)
ANSWERS = (
    "benchmark", "answers", "equal to plain", "ended by themselves", "cut at the limit", "prompts too long",
)  # fmt: skip
LENGTH_PLOT, POSITIONS_PLOT = "accepted_length.png", "acceptance_by_position.png"
WORDS = (
    "Accepted length: tokens emitted per round, including the bonus token (1 without a draft). Acceptance: accepted / "
    "proposed drafts; by position k: share of rounds that accept at least k drafts. Plain: tokens/s without the draft, "
    "on the same prompts in the same run. In brackets: 95 % bootstrap interval over prompts."
)
POSITION_WORDS = (
    "Survival: share of rounds that accept at least k drafts. Conditional acceptance: share of them among the rounds "
    "that accepted k - 1 drafts and proposed a k-th. Shaded: 95 % bootstrap interval over prompts."
)
PROFILE, PROFILE_PLOT = "Steps a second by tokens, SPS(B)", "sps.png"


def benchmarks(evaluation: Evaluation) -> Section:
    """The main table, and accepted length and speedup as drawings."""
    found = [(name, name, evaluation.named.get(name)) for name in evaluation.summary.order]
    if several := len(found) > 1 and evaluation.summary.macro is not None:
        found.append((MACRO, "macro", evaluation.summary.macro))
    rows = [[words(title), *row(evaluation, key, metrics)] for title, key, metrics in found]
    strong = frozenset([len(rows) - 1] * several)
    table = benchmark_table(evaluation.title, ("benchmark",), rows, strong)
    charts = overview([(name, [metrics]) for name, metrics in evaluation.named.items()], [""])
    blocks: list[Block] = [table, Note(_how(evaluation), where=TEXT), Note(WORDS, where=EVERYWHERE)]
    blocks += trained_notes(evaluation)
    blocks += [Drawings(charts, file=LENGTH_PLOT)] if charts else []
    if len(charts) < len(DRAWN):
        text = "No speedup: plain decoding was not measured. evaluate.baseline=true measures it."
        blocks.append(Note(text, absent=True))
    return Section("benchmarks", "Benchmarks", blocks)


def benchmark_table(
    caption: str, names: Sequence[str], rows: Sequence[Sequence[Cell]], strong: frozenset[int]
) -> Table:
    """A table of ``rows``, which are cells for the columns ``names`` followed by those of ``row``."""
    heads, parts = (*names, "prompts", *titles(FIGURES)), [(*names, *part) for part in NARROW]
    return Table(caption, heads, rows, strong, names=len(names), where=EVERYWHERE, parts=parts,
                 text_only=(BY_POSITION,))  # fmt: skip


def row(one: Evaluation, key: str, metrics: Metrics | None, label: str = "") -> list[Cell]:
    """Prompts and figures of a benchmark, or of the average if ``key`` is macro."""
    counts = {name: found.counts["prompts"] for name, found in one.summary.benchmarks.items()}
    if key == "macro":
        prompts = words(f"{sum(counts.values()):,}")
    else:
        prompts = plain(f"benchmarks/{key}/counts/prompts", counts[key], evaluation=label)
        if seen := trained(one).get(key):
            aside = f"{seen:,} trained on"
            prompts = replace(prompts, aside=aside, brief=f"{prompts.text} ({aside})")
    return [prompts, *(cells(key, metrics, FIGURES, label) if metrics else [words(None)] * len(FIGURES))]


def trained(one: Evaluation) -> dict[str, int]:
    """Benchmark -> how many of its prompts the draft was trained on, without benchmarks that have none."""
    return {name: seen for name, seen in (one.summary.facts.trained or {}).items() if seen}


def trained_notes(one: Evaluation) -> list[Note]:
    """A warning for every benchmark that has prompts on which the draft was trained."""
    facts, notes = one.summary.facts, []
    for name, seen in trained(one).items():
        text = f"{name}: {facts.draft} was trained on {seen:,} of these {facts.prompts[name]:,} prompts. On prompts "
        text += "that it has not seen, fewer drafts will be accepted."
        notes.append(Note(text, warns=True, where=EVERYWHERE))
    return notes


def _how(evaluation: Evaluation) -> str:
    """Sampler and settings in one line; the page has a table of all of them instead."""
    facts = evaluation.own_facts
    scale = " on calibrated confidences" if facts.threshold and evaluation.summary.calibration else ""
    batch = "one prompt at a time"
    if (prompts := facts.batch) > 1:
        batch = f"{prompts} prompts at a time (tokens/s are of all together)"
    return f"{sampling(facts)}; threshold {facts.threshold}{scale}; {facts.device}, {facts.dtype}, {batch}"


def sampling(facts: Facts) -> str:
    """The effective sampler (pitfall 40), the length limit and the thinking mode."""
    most, thinking = facts.max_new_tokens, facts.thinking
    return f"sampler: {listed(facts.sampler)}; at most {most} new tokens; thinking {thinking}"


def overview(groups: Sequence[tuple[str, Sequence[Metrics]]], labels: Sequence[str]) -> list[Drawing]:
    """Drawings of accepted length and speedup, for groups of (name, metrics for each of ``labels``).

    A drawing without any value is left out.
    """
    charts: list[Drawing] = []
    for title, key, unit in DRAWN:
        found = [(name, [getattr(metrics, key) for metrics in each]) for name, each in groups]
        if any(figure.value is not None for _, each in found for figure in each):
            charts.append(Whiskers(title, found, labels, Axis(unit, least=1.0), at=1.0))
    return charts


# --- by position ------------------------------------------------------------------------------------------


def by_position(evaluation: Evaluation) -> Section:
    """Survival and conditional acceptance as curves, one line per benchmark, and as folded tables."""
    longest, charts, tables = evaluation.positions, [], []
    for key, title, formula in KINDS:
        lines = [(name, getattr(m, key)) for name, m in evaluation.named.items()]
        rows = [(name, f"{path}/{key}", getattr(m, key), "") for name, path, m in evaluation.rows]
        charts.append(curves(title, formula, lines, longest))
        tables.append(by_k(f"{title}: {formula}", "benchmark", rows, longest))
    drawn = Drawings(charts, list(enumerate(evaluation.named)), file=POSITIONS_PLOT)
    return Section("positions", "Acceptance by position", [drawn, Note(POSITION_WORDS), *tables])


def curves(title: str, formula: str, lines: Sequence[tuple[str, Sequence[Figure]]], longest: int) -> Lines:
    """One curve over positions 1 to ``longest`` for each (label, figures by position)."""
    drawn = [
        series(label, style, range(1, len(figures) + 1), figures)
        for style, (label, figures) in enumerate(lines)
    ]
    return Lines(title, drawn, Axis("position k in the block", range(1, longest + 1)), shares(formula))


def by_k(
    caption: str, first: str, lines: Sequence[tuple[str, str, Sequence[Figure], str]], longest: int
) -> Table:
    """A row for each (name, path in the JSON, figures by position, evaluation); shorter blocks get dashes."""
    rows = []
    for name, path, figures, evaluation in lines:
        at = [told(f"{path}/{k}", figure, evaluation=evaluation) for k, figure in enumerate(figures)]
        rows.append([words(name), *at, *[words(None)] * (longest - len(at))])
    return Table(caption, (first, *(f"k = {k + 1}" for k in range(longest))), rows, folded=True)


# --- cost and context -------------------------------------------------------------------------------------


def cost(evaluation: Evaluation) -> Section:
    """Milliseconds and shares of drafting and verifying in a round."""
    bars = [
        (name, [("draft", m.draft_ms.value), ("verify", m.verify_ms.value or 0.0)])
        for name, m in evaluation.named.items()
        if m.draft_ms.value is not None
    ]
    rows = [[words(name), *cells(name, m, COST)] for name, m in evaluation.named.items()]
    table = Table("Cost of a round", ("benchmark", *titles(COST)), rows)
    text = "Verify rate: share of verified positions that became output."
    if (batch := evaluation.own_facts.batch) > 1:
        text += f" {batch} prompts were answered at a time; the time of a step is divided among them."
    drawn = Drawings([Bars("Milliseconds of a round", bars, "ms")], [(0, "draft"), (1, "verify")])
    return Section("cost", "Cost of a round", [drawn, table, Note(text)])


def contexts(evaluation: Evaluation) -> Section:
    """The figures by context length."""
    rows = []
    for place, bucket in enumerate(evaluation.summary.context):
        path, low, high = f"context/{place}", bucket.first, bucket.after
        name = f"{low:,} to {high - 1:,}" if high else f"{low:,} and more"
        counts = [plain(f"{path}/prompts", bucket.prompts), plain(f"{path}/rounds", bucket.rounds)]
        rows.append([words(name), *counts, *cells(path, bucket, CONTEXT)])
    columns = ("context", "prompts", "rounds", *titles(CONTEXT))
    table = Table("Rounds by positions before the anchor", columns, rows)
    return Section("context", "By context length", [table])


# --- steps a second ---------------------------------------------------------------------------------------


def steps(evaluation: Evaluation) -> Section:
    """Steps per second and milliseconds of a step: curves with one line per context, and tables."""
    found = evaluation.summary.profile
    if not found:
        text = (
            "Not measured. evaluate.profile=true measures the time of a verification pass of B tokens here."
        )
        return Section("profile", PROFILE, [Note(text, absent=True)])
    machine = found.machine
    note = Note(
        f"Measured on {machine.device}, {machine.cores} cores, {machine.threads} threads, {machine.dtype}: "
        f"medians of {found.repeats} repeats, and the range of 95 % of them. Each request of a step has the same "
        f"context and verifies at most {found.block + 1} tokens."
    )
    drawn = [_series(style, curve) for style, curve in enumerate(found.contexts)]
    x = powers("tokens of a verification pass", _counts(found))
    chart = Lines("Steps a second by tokens of a verification pass", drawn, x, Axis("steps a second"))
    legend = [(one.style, one.label) for one in drawn]
    curve = Drawings([chart], legend, file=PROFILE_PLOT)
    return Section("profile", PROFILE, [note, curve, _rates(found), _milliseconds(found)])


def _counts(found: Profile) -> list[int]:
    """The measured token counts that are powers of two, and the largest one."""
    counts = [point.tokens for point in found.contexts[0].points]
    return [n for n in counts if n & (n - 1) == 0 or n == counts[-1]]


def _series(style: int, curve: CostCurve) -> Series:
    label = f"context {curve.context}"
    points = []
    for p in curve.points:
        (low, high), rate = p.interval, 1 / p.seconds
        text = f"{label}, {p.tokens} tokens: {rate:.1f} steps a second"
        points.append(PlottedPoint(p.tokens, rate, 1 / high, 1 / low, text))
    return Series(label, style, points)


def _rates(found: Profile) -> Table:
    """Steps per second, one column per context."""
    columns = ("tokens", *(f"context {curve.context}" for curve in found.contexts))

    def cell(point: VerifyTime) -> Cell:
        rate, (low, high) = f"{1 / point.seconds:.1f}", point.interval
        aside = f"[{1 / high:.1f}, {1 / low:.1f}]"
        return Cell(rate, aside, brief=f"{rate} {aside}")

    at = [{p.tokens: p for p in curve.points} for curve in found.contexts]
    rows = [[words(n), *(cell(points[n]) for points in at)] for n in _counts(found)]
    title = "SPS(B): steps a second of the target by tokens of a step"
    return Table(title, columns, rows, folded=True, where=EVERYWHERE)


def _milliseconds(found: Profile) -> Table:
    """Milliseconds of a step, one column per context; the cells' data hold the seconds of the JSON."""
    columns = ("tokens", *(f"ms, context {curve.context}" for curve in found.contexts))

    def cell(context: int, n: int) -> Cell:
        point = found.contexts[context].points[n]
        low, high = point.interval
        data = plain(f"profile/contexts/{context}/points/{n}/seconds", point.seconds).data
        return Cell(f"{1000 * point.seconds:.1f}", f"[{1000 * low:.1f}, {1000 * high:.1f}]", data)

    rows = [
        [words(point.tokens), *(cell(context, n) for context in range(len(found.contexts)))]
        for n, point in enumerate(found.contexts[0].points)
    ]
    return Table("Milliseconds of a verification pass", columns, rows, folded=True)


# --- losslessness -----------------------------------------------------------------------------------------


def losslessness(evaluation: Evaluation) -> Section:
    """How many answers equal those of plain decoding, what to expect, and how answers ended."""
    rows = [_answers(evaluation, name) for name in evaluation.summary.order]
    table = Table("Answers against plain decoding", ANSWERS, rows)
    lines = totals(evaluation.summary, "plain decoding", "the target's context")
    notes = [Note(text, where=TEXT) for text in lines]
    return Section("lossless", "Losslessness", [_expected(evaluation), *notes, table])


def totals(summary: AnySummary, plain_name: str, limit: str) -> list[str]:
    """One line each on equal answers, cut answers and prompts left out, over all benchmarks."""
    lines, found = [], summary.benchmarks.values()
    same = [b.metrics.same_answers for b in found if b.metrics]
    known = [figure.value for figure in same if figure.value is not None]
    if summary.facts.sampler["temperature"] == 0 and same and len(known) == len(same):
        mean = Figure(sum(known) / len(known), None)
        lines.append(f"answers equal to those of {plain_name}: {number(mean, '{:.1%}')}")
    cut = sum(b.finish.get("length", 0) for b in found)
    lines.append(f"answers cut at the length limit: {cut} of {total(summary, 'answers')}")
    too_long = total(summary, "too_long")
    return lines + ([f"prompts longer than {limit}, left out: {too_long}"] if too_long else [])


def total(summary: AnySummary, count: str) -> int:
    """The sum of a count over all benchmarks."""
    return sum(found.counts.get(count, 0) for found in summary.benchmarks.values())


def _answers(evaluation: Evaluation, name: str) -> list[Cell]:
    found, path = evaluation.summary.benchmarks[name], f"benchmarks/{name}"
    metrics, counts, finish = found.metrics, found.counts, found.finish
    too_long = plain(f"{path}/counts/too_long", counts["too_long"])
    if metrics is None:
        return [words(name), *(words(None) for _ in ANSWERS[2:]), too_long]
    return [
        words(name),
        plain(f"{path}/counts/answers", counts["answers"]),
        told(f"{name}/same_answers", metrics.same_answers, "{:.1%}"),
        plain(f"{path}/finish/stop", finish.get("stop", 0)),
        plain(f"{path}/finish/length", finish.get("length", 0)),
        too_long,
    ]


def _expected(evaluation: Evaluation) -> Note:
    """What to expect: greedy answers equal the target's own in exact arithmetic, and random answers differ."""
    facts = evaluation.summary.facts
    values = [metrics.same_answers.value for metrics in evaluation.named.values()]
    if facts.sampler.get("temperature", 0) != 0:
        text = (
            "Answers were drawn at random, so they are not expected to be equal. This evaluation did not test whether "
            "the draws follow the target's distribution."
        )
        return Note(text, absent=True)
    same = [value for value in values if value is not None]
    if not same or len(same) < len(values):
        text = "Not compared, because there are no plain answers. evaluate.baseline=true makes them."
        return Note(text, absent=True)
    if facts.dtype == "float32":
        broken = min(same) < 1
        ending = "Here some differ." if broken else "They all do."
        text = f"Temperature 0 in float32: every answer is expected to equal the target's own. {ending}"
        return Note(text, warns=broken)
    return Note(
        f"Temperature 0 in {facts.dtype}: an answer may differ from the plain one after two nearly equally likely "
        "tokens, because blocks and single tokens are rounded differently. With target.dtype=float32, all are equal."
    )
