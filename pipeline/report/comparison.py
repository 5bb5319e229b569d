"""The report of a comparison of drafters (comparison.json): accepted length, speed, acceptance by position, figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from data_specs.results.comparison import ComparisonFigure, ComparisonResult, ComparisonTable, StepShare
from data_specs.results.summary import Figure
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
    plain,
    series,
    shares,
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
    "Accepted length: tokens emitted / rounds, the bonus token counted. In brackets: 95 % bootstrap interval over "
    "prompts. A table or figure counts the prompts that all of its variants answered."
)
CONDITIONAL = "Fig. 2: acceptance of position k where all before it were accepted (all prompts together)"
LATENCY = "What goes from left to right: its share of a draft step's time"


def title(result: ComparisonResult) -> str:
    """What was compared."""
    return f"Drafters on {result.facts.target}"


def page(result: ComparisonResult) -> Page:
    """The page of a comparison."""
    table, facts = result.table, result.facts
    subtitle = f"{len(result.order)} variants, {table.prompts} prompts; {facts.device}, {facts.dtype}"
    return Page(title(result), subtitle, [], sections(result))


def sections(result: ComparisonResult) -> list[Section]:
    """Everything that a comparison shows: the table, the figures in their order, and what was trained."""
    table = result.table
    setting = [Note(text, where=EVERYWHERE) for text in (*_setting(result), WORDS)]
    figures = [_figure(name, result.figures[name]) for name in result.figure_order]
    return [
        Section("lengths", "Accepted length", [*setting, *_lengths(table)]),
        Section("speed", "Speed", [_speed(table)]),
        Section("positions", "Acceptance by position", _conditional(table)),
        *figures,
        Section("variants", "Variants", [_variants(result)]),
    ]


def _setting(result: ComparisonResult) -> list[str]:
    """What was equal for all variants: data, steps and sampler."""
    facts = result.facts
    sampler = ", ".join(f"{name} {value}" for name, value in facts.sampler.items() if value is not None)
    return [
        f"Target {facts.target}; cache {facts.cache}; every variant: {facts.steps} steps of "
        f"{facts.global_batch} sequences with {facts.anchors} blocks each, seed {facts.seed}.",
        f"Sampler: {sampler}; at most {facts.max_new_tokens} new tokens; {facts.device}, {facts.dtype}, "
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


def _speed(table: ComparisonTable) -> Table:
    """Macro averages of what it costs and brings, a row a drafter."""
    rows = [[words(d), *cells(f"table/speed/{d}", table.speed[d], SPEED)] for d in table.drafters]
    return Table(f"Speed ({MACRO})", ("drafter", *titles(SPEED)), rows, where=EVERYWHERE)


def _conditional(table: ComparisonTable) -> list[Block]:
    """Conditional acceptance by position, a line and a row a drafter."""
    found = {drafter: table.conditional[drafter] for drafter in table.drafters}
    longest = max(map(len, found.values()))
    lines = [series(d, style, range(1, 1 + len(f)), f) for style, (d, f) in enumerate(found.items())]
    chart = Lines("P(accepted ≥ k | reached k)", lines, Axis("position k in the block", range(1, 1 + longest)),
                  shares("accepted of reached"))  # fmt: skip
    rows = []
    for drafter, figures in found.items():
        at = [told(f"table/conditional/{drafter}/{k}", figure) for k, figure in enumerate(figures)]
        rows.append([words(drafter), *at, *[words(None)] * (longest - len(at))])
    heads = ("drafter", *(f"k = {k + 1}" for k in range(longest)))
    drawn = Drawings([chart], list(enumerate(found)), file="comparison_conditional.png")
    return [drawn, Table(CONDITIONAL, heads, rows, where=EVERYWHERE)]


def _figure(name: str, found: ComparisonFigure) -> Section:
    """Accepted length over a setting of the drafters, and the share of the left-to-right part where it was measured."""
    drafters, latency = found.drafters, found.latency
    columns = (found.key, *map(str, found.values))
    drawn = [_chart(found, "Accepted length", found.accepted_length, "tokens a round")]
    rows = [
        [words(d), *(_told(f"figures/{name}/accepted_length/{d}/{n}", f) for n, f in enumerate(told_of))]
        for d, told_of in ((d, found.accepted_length[d]) for d in drafters)
    ]
    caption = f"{found.title} ({MACRO} of {found.prompts} prompts)"
    tables = [Table(caption, columns, rows, where=EVERYWHERE)]
    if latency is not None:
        part = {d: [Figure(one.share, None) for one in latency[d]] for d in drafters}
        drawn.append(_chart(found, "Left-to-right part of a draft step", part, "share of its time"))
        tables.append(Table(LATENCY, columns, [[words(d), *map(_share, latency[d])] for d in drafters],
                            where=EVERYWHERE))  # fmt: skip
    legend = list(enumerate(drafters))
    return Section(
        f"figure-{name}", found.title, [Drawings(drawn, legend, file=f"comparison_{name}.png"), *tables]
    )


def _chart(
    found: ComparisonFigure, heading: str, figures: Mapping[str, Sequence[Figure]], unit: str
) -> Lines:
    values = found.values
    lines = [series(d, style, values, figures[d]) for style, d in enumerate(found.drafters)]
    return Lines(heading, lines, Axis(found.key, values), Axis(unit))


def _variants(result: ComparisonResult) -> Table:
    """What was trained, in the order of training."""
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


def _share(found: StepShare) -> Cell:
    return words(f"{100 * found.share:.0f} % of {found.draft_ms:.1f} ms")
