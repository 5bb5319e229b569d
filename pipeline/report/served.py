"""The report of an evaluation of a server: the figures of the engine's counters beside the draft's own evaluation.

The summary has the form of an in-process evaluation's, so that every report reads both. Figures that the engine does
not report are None. The additional part ``served`` holds the draft's own evaluation (``promised``), if there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from data_specs.results.summary import Figure, ServedSummary
from pipeline.report import provenance, side_by_side
from pipeline.report.evaluation import Evaluation
from pipeline.report.figures import sampling, total, totals
from pipeline.report.model import (
    EVERYWHERE,
    TEXT,
    Block,
    Cell,
    Note,
    Section,
    Table,
    number,
    plain,
    told,
    words,
)

PROMISED, SERVED = "promised", "served"
WORDS = (
    "Accepted length: tokens of an answer after the first one / rounds. Rounds are verification steps, including those "
    "without a draft, which engines do not count. An engine's own mean, 1 + accepted / steps, counts drafts beyond "
    "the end of an answer too. Acceptance: accepted / drafted; by position k: share of rounds that accept at least k "
    "drafts. The engine counts both, also beyond the end of an answer. Tokens/s: by the client's clock, from the "
    "request to the complete response, including the prefill."
)
COUNTED = (
    ("answers", "counts/answers"),
    ("tokens", "counts/tokens"),
    ("rounds", "counts/rounds"),
    ("drafted", "counts/drafted"),
    ("accepted", "counts/accepted"),
    ("ended by themselves", "finish/stop"),
    ("cut at the limit", "finish/length"),
    ("prompts too long", "counts/too_long"),
)
SETTINGS = ("sampler", "max_new_tokens", "thinking", "prompts")  # both evaluations should agree in these


def sections(served: Evaluation) -> list[Section]:
    """All sections: ``served`` beside the draft's own evaluation of the same benchmarks, if the summary holds one."""
    return [
        *figures(served),
        provenance.settings(_shown(served)),
        provenance.ancestry(
            [one for one in (_promised(served), served) if one]
        ),  # labelled by their references
    ]


def figures(served: Evaluation) -> list[Section]:
    """The sections that need only the summary."""
    shown = _shown(served)
    curves = [side_by_side.positions(shown)] if served.positions else []
    return [_benchmarks(served, shown), _counted(shown[-1]), *curves]


def _shown(served: Evaluation) -> list[Evaluation]:
    both = {PROMISED: _promised(served), SERVED: served}
    return [replace(one, label=label) for label, one in both.items() if one is not None]


def _promised(served: Evaluation) -> Evaluation | None:
    """The draft's own evaluation, from the summary of the served one."""
    known = _summary(served).served.promised
    if known is None:
        return None
    ancestors = [one for one in served.ancestors if one.role != PROMISED]
    told = (known.summary, known.created, known.packages, known.revision, known.fingerprint)
    return Evaluation(known.reference, *told, ancestors)


def _summary(served: Evaluation) -> ServedSummary:
    assert isinstance(served.summary, ServedSummary), "evaluations of servers have no other summary"
    return served.summary


def _benchmarks(served: Evaluation, shown: Sequence[Evaluation]) -> Section:
    """The main table and drawings, and how to get figures that are missing."""
    facts = _summary(served).facts
    caption = f"{served.title}, served by {facts.device}"
    blocks: list[Block] = [*side_by_side.side_by_side(shown, caption).blocks, Note(WORDS, where=EVERYWHERE)]
    blocks += [Note(line, where=TEXT) for line in _how(served)]
    if len(shown) == 1:
        text = "draft=NAME puts the draft's own evaluation of the same benchmarks beside this one."
        blocks.append(Note(text, absent=True))
    if facts.plain_server is None:
        text = "No speedup: plain decoding was not measured. plain_server=URL also measures a server without the draft."
        blocks.append(Note(text, absent=True))
    return Section("benchmarks", "Promised and served" if len(shown) > 1 else "Served", blocks)


def _how(served: Evaluation) -> list[str]:
    """Servers and settings, and the settings that differ from the promised evaluation's."""
    facts, beside = _summary(served).facts, _summary(served).served.promised
    plain_server = f"{facts.plain_server} ({facts.plain_model})" if facts.plain_server else "not asked"
    servers = f"{facts.device} at {facts.server} ({facts.model}); plain: {plain_server}"
    lines = ["; ".join(filter(None, (servers, facts.note))), f"{sampling(facts)}; one prompt at a time"]
    if beside:
        both = [(n, getattr(beside.summary.facts, n), getattr(facts, n)) for n in SETTINGS]
        differ = [f"{name} {own} (served: {now})" for name, own, now in both if own != now]
        lines += [f"the promised evaluation has other settings: {', '.join(differ)}"] if differ else []
    return lines


def _counted(served: Evaluation) -> Section:
    """The engine's counters, and the number of answers equal to the plain and to the promised ones."""
    rows = [_row(served, name) for name in served.summary.order]
    columns = ("benchmark", *(title for title, _ in COUNTED), "equal to plain", "equal to promised")
    blocks: list[Block] = [Table("Counters of the engine by benchmark", columns, rows)]
    known = _summary(served).served
    if not known.steps_told:
        text = (
            "The server does not report its verification steps (llama-server --metrics does). Rounds are therefore "
            "tokens - 1 - accepted, which is too low by up to a block if the last step of an answer was cut."
        )
        blocks.append(Note(text, warns=True, where=EVERYWHERE))
    if not served.positions:
        blocks.append(Note("The server does not count by position.", absent=True))
    lines = totals(served.summary, "the plain server", "the context")
    if compared := total(served.summary, "compared_with_promised"):
        share = number(Figure(total(served.summary, "same_as_promised") / compared, None), "{:.1%}")
        lines.append(
            f"answers equal to those of the promised evaluation: {share} of {compared} (different "
            "rounding may change a token at a near-tie; if few are equal, the server has another model)"
        )
    blocks += [Note(line, where=TEXT) for line in lines]
    if known.past_end:
        text = f"{known.past_end} answers continue after an end token of the target; the server stops at other tokens."
        blocks.append(Note(text, warns=True, where=EVERYWHERE))
    return Section("counted", "Counted by the engine", blocks)


def _row(served: Evaluation, name: str) -> list[Cell]:
    found, label = served.summary.benchmarks[name], served.label
    cells = [words(name)]
    for _, key in COUNTED:
        part, field = key.split("/")
        cells.append(plain(f"benchmarks/{name}/{key}", getattr(found, part).get(field, 0), evaluation=label))
    if found.metrics is None:
        return [*cells, words(None), words(None)]
    equal, of = (found.counts.get(key) for key in ("same_as_promised", "compared_with_promised"))
    return [
        *cells,
        told(f"{name}/same_answers", found.metrics.same_answers, "{:.1%}", label),
        words(f"{equal} of {of}" if of else None),
    ]
