"""The report of an evaluation of a server: what the draft promised beside what the engine's counters say.

The summary has the form of an evaluation in process, so that every report reads both. A figure that the engine does not
tell is None. Its part ``served`` holds what is added; ``promised`` there is the draft's own evaluation, or None.
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
    "Accepted length: tokens after the first of an answer / rounds. Rounds are verification steps, with those that "
    "had no draft, which engines do not count. An engine's own mean, 1 + accepted / steps, also counts drafts beyond "
    "the end of an answer. Acceptance: accepted / drafted; by position k: the share of rounds that accept at least k "
    "drafts. The engine counts both, also beyond the end of an answer. Tokens/s: by the client's clock, from the "
    "request to the whole response, with the prefill."
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
SETTINGS = ("sampler", "max_new_tokens", "thinking", "prompts")  # they should be the same in both


def sections(served: Evaluation) -> list[Section]:
    """Every section: ``served``, beside the draft's own evaluation of the same benchmarks if the summary holds one."""
    known = _shown(served)
    return [
        *figures(served),
        provenance.settings(known),
        provenance.ancestry([one for one in (_promised(served), served) if one]),  # by their references
    ]


def figures(served: Evaluation) -> list[Section]:
    """The sections that follow from the summary alone."""
    shown = _shown(served)
    curves = [side_by_side.positions(shown)] if served.positions else []
    return [_benchmarks(served, shown), _counted(shown[-1]), *curves]


def _shown(served: Evaluation) -> list[Evaluation]:
    both = {PROMISED: _promised(served), SERVED: served}
    return [replace(one, label=label) for label, one in both.items() if one is not None]


def _promised(served: Evaluation) -> Evaluation | None:
    """The draft's own evaluation, as the served one's summary holds it."""
    known = _summary(served).served.promised
    if known is None:
        return None
    ancestors = [one for one in served.ancestors if one.role != PROMISED]
    told = (known.summary, known.created, known.packages, known.revision, known.fingerprint)
    return Evaluation(known.reference, *told, ancestors)


def _summary(served: Evaluation) -> ServedSummary:
    assert isinstance(served.summary, ServedSummary), "an evaluation of a server"
    return served.summary


def _benchmarks(served: Evaluation, shown: Sequence[Evaluation]) -> Section:
    """The main table and drawings, and how to get what is missing."""
    facts = _summary(served).facts
    caption = f"{served.title}, served by {facts.device}"
    blocks: list[Block] = [*side_by_side.side_by_side(shown, caption).blocks, Note(WORDS, where=EVERYWHERE)]
    blocks += [Note(line, where=TEXT) for line in _how(served)]
    if len(shown) == 1:
        text = "Nothing is promised. draft=NAME puts the draft's own evaluation of the same benchmarks beside it."
        blocks.append(Note(text, absent=True))
    if facts.plain_server is None:
        text = "No speedup: plain decoding was not measured. plain_server=URL also measures a server without the draft."
        blocks.append(Note(text, absent=True))
    return Section("benchmarks", "Promised and served" if len(shown) > 1 else "Served", blocks)


def _how(served: Evaluation) -> list[str]:
    """Servers and settings, and the settings that differ from the promised evaluation's."""
    facts, beside = _summary(served).facts, _summary(served).served.promised
    plain_server = "not asked"
    if facts.plain_server:
        plain_server = f"{facts.plain_server} ({facts.plain_model})"
    servers = f"{facts.device} at {facts.server} ({facts.model}); plain: {plain_server}"
    lines = ["; ".join(filter(None, (servers, facts.note))), f"{sampling(facts)}; one prompt at a time"]
    if beside:
        both = [(n, getattr(beside.summary.facts, n), getattr(facts, n)) for n in SETTINGS]
        differ = [f"{name} {own} (served: {now})" for name, own, now in both if own != now]
        lines += [f"the promised evaluation has other settings: {', '.join(differ)}"] if differ else []
    return lines


def _counted(served: Evaluation) -> Section:
    """The engine's counters, and how many answers equal the plain and the promised ones."""
    rows = [_row(served, name) for name in served.summary.order]
    columns = ("benchmark", *(title for title, _ in COUNTED), "equal to plain", "equal to promised")
    blocks: list[Block] = [Table("Counters of the engine by benchmark", columns, rows)]
    known = _summary(served).served
    if not known.steps_told:
        text = (
            "The server does not tell its verification steps (llama-server --metrics does). Rounds are computed as "
            "tokens - 1 - accepted: too few, by up to a block, where the last step of an answer was cut."
        )
        blocks.append(Note(text, warns=True, where=EVERYWHERE))
    if not served.positions:
        blocks.append(Note("The server does not count by position.", absent=True))
    lines = totals(served.summary, "the plain server", "the context")
    if compared := total(served.summary, "compared_with_promised"):
        share = number(Figure(total(served.summary, "same_as_promised") / compared, None), "{:.1%}")
        lines.append(
            f"answers equal to those of the promised evaluation: {share} of {compared} (another "
            "arithmetic may choose another token at a near-tie; if few are equal, the server has another model)"
        )
    blocks += [Note(line, where=TEXT) for line in lines]
    if known.past_end:
        text = (
            f"{known.past_end} answers continue after an end token of the target: the server stops at others."
        )
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
