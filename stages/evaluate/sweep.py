"""Threshold sweep (arXiv 2607.05147, Fig. 5): drafted and accepted tokens when each chain ends at the first draft whose
confidence is below a threshold.

Most of it is computed from one recorded run. At temperature 0 a round emits the same tokens as long as the threshold
cuts none of its accepted drafts, because the other drafts were rejected anyway. At temperature > 0 a shorter chain
draws fewer random numbers, so everything after it changes, and an answer stays the same only if nothing of it is cut. A
dialogue that changes is decoded anew as a whole, because its later turns follow the earlier answers. (A target in
bfloat16 may round differently over a shorter chain and choose another token at a near-tie; in float32 the computed and
the decoded rounds are the same.)

Shapes: N rounds, G drafts a block; thresholds [G] are on raw confidences, as decoding compares them.
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
    """Lengths int64 [N] of the chains, each ended before the first draft k whose confidence is below ``least[k]``."""
    # Decoding compares in fp32 too. NaN (nothing was drafted) is below nothing.
    below = observed.confidences < np.asarray(least, dtype=np.float32)
    return np.where(below.any(1), below.argmax(1), observed.drafted)


def changed(observed: Observed, least: Sequence[float], greedy: bool) -> set[str]:
    """Dialogues whose rounds at ``least`` [G] cannot be computed from the record (see the module's docstring)."""
    needed = observed.accepted if greedy else observed.drafted
    return set(observed.dialogues[cut(observed, least) < needed].tolist())


def sweep_row(
    threshold: float,
    least: Sequence[float],
    record: pa.Table,
    anew: pa.Table | None,
    changes: Collection[str],
) -> SweepRow:
    """Figures at one threshold: from the record's rounds, shortened, and for the dialogues ``changes`` from ``anew``.

    ``accepted`` and ``rejected`` are drafts a round; ``exact`` and ``anew`` count answers. A rate of nothing is None.
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
    """Number of answers made with the draft, by dialogue."""
    columns = (rounds[name].to_pylist() for name in ("benchmark", "prompt", "mode", "round"))
    return Counter(
        f"{b}/{p}" for b, p, mode, number in zip(*columns, strict=True) if mode == DRAFT and not number
    )


def folders() -> list[str]:
    """Folders of rounds below an evaluation's: one for all thresholds, and in it one for each."""
    return [SWEEP_ROUNDS, *(_folder(threshold) for threshold in THRESHOLDS)]


def decode_changed(folder: Path, speaker: Speaker, prompts: dict[str, list[Prompt]], answer: Answer) -> None:
    """Let ``answer`` decode again the dialogues in ``folder`` (made by ``speaker``) that a threshold changes."""
    record = observe(read_rounds(folder), speaker.draft.max_drafts)
    for threshold in THRESHOLDS:
        other = replace(speaker, threshold=threshold, baseline=False)
        redo = _changed(record, speaker, other)
        chosen = {
            name: [p for p in listed if f"{name}/{p.index}" in redo] for name, listed in prompts.items()
        }
        answer(_folder(threshold), other, chosen)


def section(folder: Path, speaker: Speaker) -> list[SweepRow]:
    """Rows of summary.json's sweep (see ``sweep_row``) from the rounds in ``folder``."""
    rounds, rows = read_rounds(folder), []
    record = observe(rounds, speaker.draft.max_drafts)
    for threshold in THRESHOLDS:
        other = replace(speaker, threshold=threshold)
        redo = _changed(record, speaker, other)
        anew = read_rounds(folder, _folder(threshold)) if redo else None
        rows.append(sweep_row(threshold, other.thresholds, rounds, anew, redo))
    return rows


def _changed(record: Observed, speaker: Speaker, other: Speaker) -> set[str]:
    """Dialogues in which the threshold of ``other`` changes what ``speaker`` recorded."""
    if other.threshold < speaker.threshold:  # the record lacks what its own threshold cut
        return set(record.dialogues.tolist())
    return changed(record, other.thresholds, speaker.sampler.greedy)


def _folder(threshold: float) -> str:
    return f"{SWEEP_ROUNDS}/{threshold:.1f}"
