"""How many answers are those of plain decoding, what was to be expected, and how answers ended."""

from __future__ import annotations

from pipeline.report.evaluation import Evaluation
from pipeline.report.model import Cell, Note, Section, Table, plain, told, words

COLUMNS = (
    "benchmark",
    "answers",
    "equal to plain",
    "ended by themselves",
    "cut at the limit",
    "prompts too long",
)


def losslessness(evaluation: Evaluation) -> Section:
    """The section."""
    rows = [_row(evaluation, name) for name in evaluation.summary["order"]]
    table = Table("Answers against plain decoding", COLUMNS, rows)
    return Section("lossless", "Losslessness", [_expected(evaluation), table])


def _row(evaluation: Evaluation, name: str) -> list[Cell]:
    found, path = evaluation.summary["benchmarks"][name], f"benchmarks/{name}"
    metrics, counts, finish = found["metrics"], found["counts"], found["finish"]
    too_long = plain(f"{path}/counts/too_long", counts["too_long"])
    if metrics is None:
        return [words(name), *(words(None) for _ in COLUMNS[2:]), too_long]
    return [
        words(name),
        plain(f"{path}/counts/answers", counts["answers"]),
        told(f"{name}/same_answers", metrics["same_answers"], "{:.1%}"),
        plain(f"{path}/finish/stop", finish.get("stop", 0)),
        plain(f"{path}/finish/length", finish.get("length", 0)),
        too_long,
    ]


def _expected(evaluation: Evaluation) -> Note:
    """Greedy output equals the target's own in exact arithmetic; random answers differ as they should."""
    facts = evaluation.summary["facts"]
    same = [metrics["same_answers"]["value"] for metrics in evaluation.named.values()]
    if facts["sampler"].get("temperature", 0) != 0:
        text = (
            "Answers were drawn at random: equal ones are not to be expected. Whether draws follow the target's "
            "distribution was not tested in this evaluation."
        )
        return Note(text, absent=True)
    if not same or None in same:
        return Note(
            "Not compared: there are no plain answers. evaluate.baseline=true makes them.", absent=True
        )
    if facts["dtype"] == "float32":
        broken = min(same) < 1
        ending = "Here some differ." if broken else "They all do."
        text = f"Temperature 0 in float32: every answer is expected to equal the target's own. {ending}"
        return Note(text, warns=broken)
    return Note(
        f"Temperature 0 in {facts['dtype']}: an answer may leave the plain one where two tokens are nearly equally "
        "likely, because a block and a single token are rounded differently. target.dtype=float32 shows all equal."
    )
