"""Threshold sweep (arXiv 2607.05147, Fig. 5): drafted and accepted tokens if each chain ends before the first draft
whose confidence is below a threshold.

Most figures are computed from one recorded run. At temperature 0, a round emits the same tokens unless the threshold
cuts an accepted draft, because the other drafts were rejected anyway. At temperature > 0, a shorter chain draws fewer
random numbers, so an answer stays the same only if none of its chains is cut. If any answer of a dialogue changes, the
whole dialogue is decoded again, because later turns depend on earlier answers. (In float32, computed and decoded rounds
are the same. In bfloat16, a target may round differently over a shorter chain and choose another token at a near-tie.)

Shapes: N rounds, G drafts in a block; thresholds [G] apply to raw confidences, as in decoding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_specs.evaluation import DRAFT, SWEEP_ROUNDS, read_rounds
from data_specs.results.summary import SweepRow
from pipeline.confidence.rounds import Observed, observe
from pipeline.decoding.calibrate import Answer
from pipeline.decoding.dialogue import Speaker
from pipeline.prompts.benchmarks import Prompt

Array = np.ndarray
THRESHOLDS = tuple(k / 10 for k in range(10))


def cut(observed: Observed, least: Sequence[float]) -> Array:
    """Lengths int64 [N] of the chains if each ends before the first draft k whose confidence is below ``least[k]``."""
    # Decoding compares in fp32 too. NaN (nothing drafted) never counts as below.
    below = observed.confidences < np.asarray(least, dtype=np.float32)
    return np.where(below.any(1), below.argmax(1), observed.drafted)


def changed(observed: Observed, least: Sequence[float], greedy: bool) -> set[str]:
    """Dialogues that ``least`` [G] changes, so that they cannot be computed from the record (module's docstring)."""
    needed = observed.accepted if greedy else observed.drafted
    return set(observed.dialogues[cut(observed, least) < needed].tolist())


def sweep_row(
    threshold: float,
    least: Sequence[float],
    record: pa.Table,
    anew: pa.Table | None,
    changes: Collection[str],
) -> SweepRow:
    """Figures at one threshold, from ``anew`` for the dialogues ``changes``, else from shortened recorded rounds.

    ``accepted`` and ``rejected`` are drafts per round; ``exact`` and ``anew`` count answers. A rate of nothing is None.
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
    return SweepRow(
        threshold=threshold,
        accepted=accepted / max(1, rounds),
        rejected=(proposed - accepted) / max(1, rounds),
        acceptance_rate=accepted / proposed if proposed else None,
        accepted_length=emitted / rounds if rounds else None,
        exact=sum(answers.values()) - redone,
        anew=redone,
    )


def _answers(rounds: pa.Table) -> Counter[str]:
    """Dialogue -> number of its answers made with the draft."""
    columns = (rounds[name].to_pylist() for name in ("benchmark", "prompt", "mode", "round"))
    return Counter(
        f"{b}/{p}" for b, p, mode, number in zip(*columns, strict=True) if mode == DRAFT and not number
    )


def folders() -> list[str]:
    """Folders of the sweep's rounds within an evaluation: a common one, and one for each threshold in it."""
    return [SWEEP_ROUNDS, *(_folder(threshold) for threshold in THRESHOLDS)]


def decode_changed(folder: Path, speaker: Speaker, prompts: dict[str, list[Prompt]], answer: Answer) -> None:
    """For each threshold, let ``answer`` decode again the dialogues of ``speaker`` in ``folder`` that it changes."""
    record = observe(read_rounds(folder), speaker.draft.max_drafts)
    for threshold in THRESHOLDS:
        other = replace(speaker, threshold=threshold, baseline=False)
        redo = _changed(record, speaker, other)
        chosen = {
            name: [p for p in listed if f"{name}/{p.index}" in redo] for name, listed in prompts.items()
        }
        answer(_folder(threshold), other, chosen)


def section(folder: Path, speaker: Speaker) -> list[SweepRow]:
    """The rows of the sweep in summary.json (see ``sweep_row``), from the rounds in ``folder``."""
    rounds, rows = read_rounds(folder), []
    record = observe(rounds, speaker.draft.max_drafts)
    for threshold in THRESHOLDS:
        other = replace(speaker, threshold=threshold)
        redo = _changed(record, speaker, other)
        anew = read_rounds(folder, _folder(threshold)) if redo else None
        rows.append(sweep_row(threshold, other.thresholds, rounds, anew, redo))
    return rows


def _changed(record: Observed, speaker: Speaker, other: Speaker) -> set[str]:
    """Dialogues of ``speaker`` that the threshold of ``other`` changes."""
    if other.threshold < speaker.threshold:  # the record lacks the drafts that its own threshold cut
        return set(record.dialogues.tolist())
    return changed(record, other.thresholds, speaker.sampler.greedy)


def _folder(threshold: float) -> str:
    return f"{SWEEP_ROUNDS}/{threshold:.1f}"
