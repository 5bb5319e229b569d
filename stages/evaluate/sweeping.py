"""The threshold sweep of an evaluation: which dialogues are decoded again, and the rows of its table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from data_specs.evaluation import SWEEP_ROUNDS, read_rounds
from pipeline.confidence.rounds import Observed, observe
from pipeline.decoding.calibrate import Answer
from pipeline.decoding.dialogue import Speaker
from pipeline.prompts.benchmarks import Prompt
from stages.evaluate.sweep import THRESHOLDS, changed, sweep_row


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


def section(folder: Path, speaker: Speaker) -> list[dict[str, Any]]:
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
