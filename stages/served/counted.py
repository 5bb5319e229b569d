"""Figures of served answers, by the arithmetic of pipeline/acceptance.py, from an engine's counters instead of rounds.

rounds           max(drafts, tokens - 1 - accepted) of every answer: the verification steps that the engine counts,
                 and those without a draft, which it does not. Where it counts none, the second number alone (too
                 few by up to a block for an answer whose last step was cut).
accepted length  sum(tokens - 1) / sum(rounds): the prefill emits the first token. Tokens beyond an answer's end
                 are not counted, as in draftline's own evaluation.
acceptance rate  sum(accepted) / sum(drafted), as the engine counts, beyond an answer's end too
survival at k    steps that accepted at least k drafts / rounds; unknown where the engine does not tell
tokens/s         answer tokens / seconds by the client's clock
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from data_specs.evaluation import DRAFT, PLAIN
from pipeline.acceptance import Figures, Sums, from_sums

Row = dict[str, Any]


def figures(answers: pa.Table, positions: int, resamples: int, seed: int = 0) -> Figures:
    """All metrics of ``answers`` (schema: data_specs/served.py); ``positions`` K as ``longest`` tells, 0: unknown."""
    return from_sums(prompt_sums(answers, positions), resamples, seed)


def longest(answers: pa.Table) -> int:
    """Positions that the engine counts by; 0 where any answer with drafts lacks them."""
    rows = [row for row in answers.to_pylist() if row["mode"] == DRAFT and row["drafted"]]
    if not rows or any(row["accepted_at"] is None for row in rows):
        return 0
    return max(len(row["accepted_at"]) for row in rows)


def prompt_sums(answers: pa.Table, positions: int) -> Sums:
    """Sums over the answers of each prompt, by the names of ``pipeline.acceptance.prompt_sums``; NaN: not known."""
    by_prompt: dict[tuple[str, int], list[Row]] = {}
    for row in answers.to_pylist():
        by_prompt.setdefault((row["benchmark"], row["prompt"]), []).append(row)
    each = [_sums(rows, positions) for rows in by_prompt.values()]
    return {name: np.array([sums[name] for sums in each], dtype=float) for name in each[0]}


def rounds_of(row: Row) -> int:
    """Verification steps of one answer made with the draft; see the module's docstring."""
    deduced = len(row["tokens"]) - 1 - (row["accepted"] or 0)
    if row["drafts"] is None:
        return max(deduced, min(1, len(row["tokens"]) - 1))
    return max(row["drafts"], deduced)


def _sums(rows: list[Row], positions: int) -> dict[str, Any]:
    drafted = [row for row in rows if row["mode"] == DRAFT]
    plain = {row["turn"]: row for row in rows if row["mode"] == PLAIN}
    pairs = [(row, plain[row["turn"]]) for row in drafted if row["turn"] in plain]
    survived = [_at(drafted, k) for k in range(positions)]
    rounds = sum(map(rounds_of, drafted))
    return {
        "answers": len(drafted),
        "rounds": rounds,
        "emitted": sum(len(row["tokens"]) - 1 for row in drafted),
        "drafted": sum(row["drafted"] or 0 for row in drafted),
        "proposed": sum(row["drafted"] or 0 for row in drafted),
        "accepted": sum(row["accepted"] or 0 for row in drafted),
        "tokens": sum(len(row["tokens"]) for row in drafted),
        "seconds": sum(row["seconds"] for row in drafted),
        "plain_tokens": sum(len(row["tokens"]) for row in plain.values()),
        "plain_seconds": sum(row["seconds"] for row in plain.values()),
        "draft_seconds": np.nan,  # an engine does not tell them apart
        "verify_seconds": np.nan,
        "survived": survived,
        "reached": [rounds, *survived][:positions],
        "compared": len(pairs),
        "same": sum(one["tokens"] == other["tokens"] for one, other in pairs),
    }


def _at(rows: list[Row], k: int) -> int:
    """Steps that accepted more than ``k`` drafts."""
    return sum(row["accepted_at"][k] for row in rows if row["accepted_at"] and k < len(row["accepted_at"]))
