"""The report of a comparison of drafters (comparison.json): accepted length, speed, acceptance by position, figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from data_specs.results.comparison import ComparisonFigure, ComparisonResult, ComparisonTable
from data_specs.results.summary import Figure
from pipeline.report.figures import by_k, curves
from pipeline.report.model import (
    EVERYWHERE,
    FILED,
    MACRO,
    Axis,
    Block,
    Cell,
    Drawings,
    Lines,
    Metric,
    Note,
    Page,
    Section,
    Table,
    Whiskers,
    cells,
    listed,
    plain,
    series,
    titles,
    told,
    with_interval,
    words,
)  # fmt: skip

SPEED = (
    Metric("acceptance", "acceptance_rate", "{:.1%}", "{:.0%}"),
    Metric("drafts a round", "drafted_length"),
    Metric("draft ms", "draft_ms", "{:.1f}"),
    Metric("verify ms", "verify_ms", "{:.1f}"),
    Metric("tokens/s", "tokens_per_second", "{:.1f}"),
    Metric("speedup", "speedup", interval=True),
)
WORDS = (
    "Accepted length: tokens emitted / rounds, including the bonus token. In brackets: 95 % bootstrap interval over "
    "prompts. Each table or figure counts only the prompts that all of its variants answered."
)
CONDITIONAL = "Fig. 2: acceptance of position k if all earlier ones were accepted (all prompts together)"
LATENCY = "Sequential share of a draft step's time"


def title(result: ComparisonResult) -> str:
    """The heading of the report."""
    return f"Drafters on {result.facts.target}"


def page(result: ComparisonResult) -> Page:
    """The page of a comparison."""
    table, facts = result.table, result.facts
    subtitle = f"{len(result.order)} variants, {table.prompts} prompts; {facts.device}, {facts.dtype}"
    return Page(title(result), subtitle, [], sections(result))


def sections(result: ComparisonResult) -> list[Section]:
    """All sections of a comparison: the table, the figures in their order, and the variants."""
    table = result.table
    setting = [Note(text, where=EVERYWHERE) for text in (*_setting(result), WORDS)]
    speed = [[words(d), *cells(f"table/speed/{d}", table.speed[d], SPEED)] for d in table.drafters]
    heads = ("drafter", *titles(SPEED))
    return [
        Section("lengths", "Accepted length", [*setting, *_lengths(table)]),
        Section("speed", "Speed", [Table(f"Speed ({MACRO})", heads, speed, where=EVERYWHERE)]),
        Section("positions", "Acceptance by position", _conditional(table)),
        *(_figure(name, result.figures[name]) for name in result.figure_order),
        Section("variants", "Variants", [_variants(result)]),
    ]


def _setting(result: ComparisonResult) -> list[str]:
    """What is equal for all variants: data, steps and sampler."""
    facts = result.facts
    return [
        f"Target {facts.target}; cache {facts.cache}; every variant: {facts.steps} steps of "
        f"{facts.global_batch} sequences with {facts.anchors} blocks each, seed {facts.seed}.",
        f"Sampler: {listed(facts.sampler)}; at most {facts.max_new_tokens} new tokens; {facts.device}, {facts.dtype}, "
        "batch of one.",
    ]


def _lengths(table: ComparisonTable) -> list[Block]:
    """Accepted length by benchmark and drafter, and as multiples of the first drafter's."""
    drafters, rows = table.drafters, [(name, table.rows[name]) for name in table.order]
    strong = frozenset(place for place, (name, _) in enumerate(rows) if name == MACRO)
    groups = [(name, [row.accepted_length[d] for d in drafters]) for name, row in rows]
    chart = Whiskers("Accepted length", groups, drafters, Axis("tokens a round", least=1.0), at=1.0)
    lengths, ratios = [], []
    for name, row in rows:
        path = f"table/rows/{name}"
        lengths.append([words(name), plain(f"{path}/prompts", row.prompts)])
        lengths[-1] += [_told(f"{path}/accepted_length/{d}", row.accepted_length[d]) for d in drafters]
        ratios.append([words(name), *(_told(f"{path}/ratio/{d}", row.ratio[d]) for d in drafters[1:])])
    multiple = f"Accepted length as a multiple of {drafters[0]}'s (paired bootstrap over the same prompts)"
    return [
        Drawings([chart], list(enumerate(drafters)), file="comparison_lengths.png"),
        Table(
            "Table 1: accepted length", ("benchmark", "prompts", *drafters), lengths, strong, where=EVERYWHERE
        ),
        Table(multiple, ("benchmark", *drafters[1:]), ratios, strong, where=EVERYWHERE),
    ]


def _conditional(table: ComparisonTable) -> list[Block]:
    """Conditional acceptance by position: one line and one row per drafter."""
    found = [(drafter, table.conditional[drafter]) for drafter in table.drafters]
    longest = max(len(figures) for _, figures in found)
    chart = curves("P(accepted ≥ k | reached k)", "accepted of reached", found, longest)
    drawn = Drawings([chart], list(enumerate(table.drafters)), file="comparison_conditional.png")
    rows = [(drafter, f"table/conditional/{drafter}", figures, "") for drafter, figures in found]
    return [drawn, replace(by_k(CONDITIONAL, "drafter", rows, longest), folded=False, where=EVERYWHERE)]


def _figure(name: str, found: ComparisonFigure) -> Section:
    """Accepted length for each value of a setting, and the sequential share of a draft step if it was measured."""
    drafters, latency = found.drafters, found.latency
    columns = (found.key, *map(str, found.values))
    drawn = [_chart(found, "Accepted length", found.accepted_length, "tokens a round")]
    path = f"figures/{name}/accepted_length"
    rows = [
        [words(d), *(_told(f"{path}/{d}/{n}", figure) for n, figure in enumerate(found.accepted_length[d]))]
        for d in drafters
    ]
    caption = f"{found.title} ({MACRO} of {found.prompts} prompts)"
    tables = [Table(caption, columns, rows, where=EVERYWHERE)]
    if latency is not None:
        part = {d: [Figure(one.share, None) for one in latency[d]] for d in drafters}
        drawn.append(_chart(found, "Sequential part of a draft step", part, "share of its time"))
        rows = [
            [words(d), *(words(f"{100 * one.share:.0f} % of {one.draft_ms:.1f} ms") for one in latency[d])]
            for d in drafters
        ]
        tables.append(Table(LATENCY, columns, rows, where=EVERYWHERE))
    drawings = Drawings(drawn, list(enumerate(drafters)), file=f"comparison_{name}.png")
    return Section(f"figure-{name}", found.title, [drawings, *tables])


def _chart(
    found: ComparisonFigure, heading: str, figures: Mapping[str, Sequence[Figure]], unit: str
) -> Lines:
    values = found.values
    lines = [series(d, style, values, figures[d]) for style, d in enumerate(found.drafters)]
    return Lines(heading, lines, Axis(found.key, values), Axis(unit))


def _variants(result: ComparisonResult) -> Table:
    """The trained variants, in the order of training."""
    rows = []
    for name in result.order:
        one, path = result.variants[name], f"variants/{name}"
        counts = [plain(f"{path}/trainable", one.trainable)]
        counts.append(plain(f"{path}/heldout_length", one.heldout_length, "{:.2f}"))
        rows.append([words(name), words(one.draft), words(one.evaluation), *counts])
    columns = ("variant", "draft", "evaluation", "trained parameters", "held-out length")
    return Table("Variants", columns, rows, names=3, where=FILED)


def _told(path: str, figure: Figure) -> Cell:
    return told(path, figure, brief=with_interval(figure))
