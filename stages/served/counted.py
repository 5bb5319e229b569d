"""Figures of served answers, computed as in pipeline/acceptance.py, but from an engine's counters instead of rounds.

rounds           max(drafts, tokens - 1 - accepted) of every answer, because engines count steps with drafts only.
                 If an engine does not count steps, just the second number; if the last step of the answer was cut,
                 that is too low by up to a block.
accepted length  sum(tokens - 1) / sum(rounds), because the prefill emits the first token. Tokens beyond an answer's
                 end do not count, as in draftline's own evaluation.
acceptance rate  sum(accepted) / sum(drafted) as the engine counts them, also beyond an answer's end
survival at k    steps that accepted at least k drafts / rounds; unknown if the engine does not tell
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
    """All metrics of ``answers`` (schema: data_specs/served.py); ``positions`` K is from ``longest`` (0: unknown)."""
    return from_sums(prompt_sums(answers, positions), resamples, seed)


def longest(answers: pa.Table) -> int:
    """The number of positions K for which the engine counts; 0 if it does not for any answer with drafts."""
    rows = [row for row in answers.to_pylist() if row["mode"] == DRAFT and row["drafted"]]
    if not rows or any(row["accepted_at"] is None for row in rows):
        return 0
    return max(len(row["accepted_at"]) for row in rows)


def prompt_sums(answers: pa.Table, positions: int) -> Sums:
    """Sums over the answers of each prompt, named as in ``pipeline.acceptance.prompt_sums``; NaN if unknown."""
    by_prompt: dict[tuple[str, int], list[Row]] = {}
    for row in answers.to_pylist():
        by_prompt.setdefault((row["benchmark"], row["prompt"]), []).append(row)
    each = [_sums(rows, positions) for rows in by_prompt.values()]
    return {name: np.array([sums[name] for sums in each], dtype=float) for name in each[0]}


def rounds_of(row: Row) -> int:
    """Verification steps of one answer made with the draft (see the module's docstring)."""
    deduced = len(row["tokens"]) - 1 - (row["accepted"] or 0)
    if row["drafts"] is None:
        return max(deduced, min(1, len(row["tokens"]) - 1))
    return max(row["drafts"], deduced)


def _sums(rows: list[Row], positions: int) -> dict[str, Any]:
    drafted = [row for row in rows if row["mode"] == DRAFT]
    plain = {row["turn"]: row for row in rows if row["mode"] == PLAIN}
    pairs = [(row, plain[row["turn"]]) for row in drafted if row["turn"] in plain]
    told = [row["accepted_at"] or [] for row in drafted]
    survived = [sum(at[k] for at in told if k < len(at)) for k in range(positions)]
    rounds = sum(map(rounds_of, drafted))
    tokens, proposed = (
        sum(len(row["tokens"]) for row in drafted),
        sum(row["drafted"] or 0 for row in drafted),
    )
    return {
        "answers": len(drafted),
        "rounds": rounds,
        "emitted": tokens - len(drafted),
        "drafted": proposed,
        "proposed": proposed,
        "accepted": sum(row["accepted"] or 0 for row in drafted),
        "tokens": tokens,
        "seconds": sum(row["seconds"] for row in drafted),
        "plain_tokens": sum(len(row["tokens"]) for row in plain.values()),
        "plain_seconds": sum(row["seconds"] for row in plain.values()),
        "draft_seconds": np.nan,  # engines do not report these two
        "verify_seconds": np.nan,
        "survived": survived,
        "reached": [rounds, *survived][:positions],
        "compared": len(pairs),
        "same": sum(one["tokens"] == other["tokens"] for one, other in pairs),
    }
