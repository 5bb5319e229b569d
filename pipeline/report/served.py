"""The page of an evaluation of a server: what training promised beside what serving gives, by the engine's counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipeline.report import provenance, side_by_side
from pipeline.report.evaluation import Evaluation
from pipeline.report.model import Block, Cell, Note, Section, Table, plain, told, words

PROMISED, SERVED = "promised", "served"
TOLD = (
    "summary",
    "created",
    "packages",
    "revision",
    "fingerprint",
)  # of the promised evaluation, in the served's summary
WORDS = (
    "accepted length = tokens after an answer's first / rounds (verification steps; those without a draft, which "
    "engines do not count, included); an engine's own mean, 1 + accepted / steps, also counts drafts beyond an "
    "answer's end",
    "acceptance = accepted / drafted, and by position the share of rounds that accept at least k drafts, both as the "
    "engine counts, beyond an answer's end too",
    "tokens/s by the client's clock, from a request to its whole response, the prefill included",
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


def sections(served: Evaluation) -> list[Section]:
    """What ``served`` found, beside the draft's own evaluation of the same benchmarks where its summary holds one."""
    both = {PROMISED: _promised(served), SERVED: served}
    known = {label: one for label, one in both.items() if one is not None}
    shown = [replace(one, label=label) for label, one in known.items()]
    return [
        _figures(shown),
        _counted(shown[-1]),
        *([side_by_side.positions(shown)] if served.positions else []),
        provenance.settings(shown),
        provenance.ancestry(list(known.values())),  # by their references
    ]


def _promised(served: Evaluation) -> Evaluation | None:
    """The draft's own evaluation, as the served one's summary tells of it."""
    known = served.summary["served"]["promised"]
    if known is None:
        return None
    ancestors = [one for one in served.ancestors if one.role != PROMISED]
    return Evaluation(known["reference"], ancestors=ancestors, **{name: known[name] for name in TOLD})


def _figures(shown: Sequence[Evaluation]) -> Section:
    """The main table and drawings, with what is missing and how to get it."""
    blocks: list[Block] = [
        *side_by_side.side_by_side(shown).blocks,
        Note(" ".join(f"{_sentence(w)}" for w in WORDS)),
    ]
    served = shown[-1]
    if len(shown) == 1:
        text = "Nothing is promised: draft=NAME puts the draft's own evaluation of the same benchmarks beside it."
        blocks.append(Note(text, absent=True))
    if served.summary["facts"]["plain_server"] is None:
        text = "No speedup: plain decoding was not measured. plain_server=URL measures it: a server without the draft."
        blocks.append(Note(text, absent=True))
    return Section("benchmarks", "Promised and served" if len(shown) > 1 else "Served", blocks)


def _counted(served: Evaluation) -> Section:
    """The engine's counters, and how many answers are those that they should be."""
    rows = [_row(served, name) for name in served.summary["order"]]
    columns = ("benchmark", *(title for title, _ in COUNTED), "equal to plain", "equal to promised")
    blocks: list[Block] = [Table("Counters of the engine by benchmark", columns, rows)]
    known = served.summary["served"]
    if not known["steps_told"]:
        text = (
            "The server does not tell its verification steps (llama-server --metrics does): rounds are tokens - 1 - "
            "accepted, too few by up to a block where an answer's last step was cut."
        )
        blocks.append(Note(text, warns=True))
    if not served.positions:
        blocks.append(Note("The server does not count by position.", absent=True))
    if known["past_end"]:
        text = f"{known['past_end']} answers went on after an end token of the target: the server ends at others."
        blocks.append(Note(text, warns=True))
    return Section("counted", "Counted by the engine", blocks)


def _row(served: Evaluation, name: str) -> list[Cell]:
    found, label = served.summary["benchmarks"][name], served.label
    cells = [words(name)]
    for _, key in COUNTED:
        part, field = key.split("/")
        cells.append(plain(f"benchmarks/{name}/{key}", found[part].get(field, 0), evaluation=label))
    if found["metrics"] is None:
        return [*cells, words(None), words(None)]
    equal = found["counts"].get("same_as_promised")
    of = found["counts"].get("compared_with_promised")
    return [
        *cells,
        told(f"{name}/same_answers", found["metrics"]["same_answers"], "{:.1%}", label),
        words(None) if not of else words(f"{equal} of {of}"),
    ]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
