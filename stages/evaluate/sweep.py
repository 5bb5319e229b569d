"""Threshold sweep (arXiv 2607.05147, Fig. 5): what is drafted and accepted when chains end at the first unsure draft.

Much of it can be computed from one recorded run. A threshold cuts a round's chain before the first draft whose
confidence is below it. At temperature 0 the round still emits the same tokens when none of its accepted drafts is cut:
only drafts go that were rejected anyway. At temperature > 0 a shorter chain draws fewer random numbers, so everything
after it changes, and only an answer of which nothing is cut stays. Dialogues that change are decoded anew: a later turn
follows what an earlier one said. (A target in bfloat16 may round differently over a shorter chain and part at a
near-tie; in float32 the computed and the decoded rounds are the same.)

Shapes: N rounds, G drafts a block; thresholds [G] are on raw confidences, as decoding compares them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from data_specs.evaluation import DRAFT
from pipeline.confidence.rounds import Observed, observe

Array = np.ndarray
THRESHOLDS = tuple(k / 10 for k in range(10))


def cut(observed: Observed, least: Sequence[float]) -> Array:
    """Length int64 [N] of each chain when it ends before the first draft k with a confidence below ``least[k]``."""
    # As decoding compares: in fp32. Never where nothing was drafted (NaN).
    below = observed.confidences < np.asarray(least, dtype=np.float32)
    return np.where(below.any(1), below.argmax(1), observed.drafted)


def changed(observed: Observed, least: Sequence[float], greedy: bool) -> set[str]:
    """Dialogues whose rounds at ``least`` [G] do not follow from the record (the module's docstring says why)."""
    needed = observed.accepted if greedy else observed.drafted
    return set(observed.dialogues[cut(observed, least) < needed].tolist())


def sweep_row(
    threshold: float,
    least: Sequence[float],
    record: pa.Table,
    anew: pa.Table | None,
    changes: Collection[str],
) -> dict[str, Any]:
    """Figures at one threshold: the record's rounds, cut, except those of ``changes``, whose rounds ``anew`` holds.

    ``accepted`` and ``rejected`` are drafts a round, ``exact`` and ``anew`` answers; rates without any are None.
    """
    old = observe(record, len(least))
    old = old.where(~np.isin(old.dialogues, list(changes)))
    parts = [(old, cut(old, least))]
    if anew is not None:
        new = observe(anew, len(least))
        parts.append((new, new.drafted))
    rounds = sum(len(o.drafted) for o, _ in parts)
    accepted = sum(int(o.accepted.sum()) for o, _ in parts)
    proposed = sum(int(np.minimum(o.proposed, lengths).sum()) for o, lengths in parts)
    emitted = sum(int(o.emitted.sum()) for o, _ in parts)
    answers = _answers(record)
    redone = sum(count for dialogue, count in answers.items() if dialogue in changes)
    return {
        "threshold": threshold,
        "accepted": accepted / max(1, rounds),
        "rejected": (proposed - accepted) / max(1, rounds),
        "acceptance_rate": accepted / proposed if proposed else None,
        "accepted_length": emitted / rounds if rounds else None,
        "exact": sum(answers.values()) - redone,
        "anew": redone,
    }


def _answers(rounds: pa.Table) -> Counter[str]:
    """Answers made with the draft, by dialogue."""
    columns = (rounds[name].to_pylist() for name in ("benchmark", "prompt", "mode", "round"))
    return Counter(
        f"{b}/{p}" for b, p, mode, number in zip(*columns, strict=True) if mode == DRAFT and not number
    )
