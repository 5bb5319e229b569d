"""Sections on the origin of figures: draft, target and settings, and the lineage of the artifacts."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.report.evaluation import Evaluation, facts
from pipeline.report.model import Block, Cell, Section, Table, moment, words

TITLE = "What was evaluated"


def setting(evaluation: Evaluation) -> Section:
    """Draft, target and settings of one evaluation."""
    rows = [[words(name), words(text)] for name, text in facts(evaluation).items()]
    return Section("setting", TITLE, [Table("Draft, target and settings", ("", ""), rows, kind="facts")])


def settings(evaluations: Sequence[Evaluation]) -> Section:
    """The facts of the evaluations: first those that differ, with one column per evaluation, then the equal ones."""
    told = [facts(one) for one in evaluations]
    names = dict.fromkeys(name for found in told for name in found)
    rows = {name: [found.get(name) for found in told] for name in names}
    differ = [[words(n), *map(words, texts)] for n, texts in rows.items() if len(set(texts)) > 1]
    same = [[words(n), words(texts[0])] for n, texts in rows.items() if len(set(texts)) == 1]
    labels = ("", *(one.label for one in evaluations))
    blocks: list[Block] = [Table("What differs", labels, differ, kind="facts")] if differ else []
    return Section("setting", TITLE, [*blocks, Table("What is the same", ("", ""), same, kind="facts")])


def ancestry(evaluations: Sequence[Evaluation]) -> Section:
    """The artifacts from which each evaluation was made."""
    columns = ("artifact", "reference", "fingerprint", "made", "revision")
    tables = [
        Table(f"{one.label} and what it was made from", columns, _rows(one), kind="words")
        for one in evaluations
    ]
    return Section("lineage", "Lineage", tables)


def _rows(one: Evaluation) -> list[list[Cell]]:
    rows = [_artifact("evaluation", one.label, one.fingerprint, one.created, one.revision)]
    for a in one.ancestors:
        rows.append(_artifact(a.role, a.reference, a.fingerprint, a.created, a.revision))
    return rows


def _artifact(
    role: str, reference: str | None, fingerprint: str | None, created: str | None, revision: str | None
) -> list[Cell]:
    short = words(None) if fingerprint is None else Cell(fingerprint[:16], data={"fingerprint": fingerprint})
    texts = (reference or "not in this store", moment(created), revision and revision[:12])
    return [words(role), words(texts[0]), short, words(texts[1]), words(texts[2])]
