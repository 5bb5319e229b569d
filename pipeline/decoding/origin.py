"""What a draft was made from, as far as the store holds it: the prompts that it was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from data_specs.answers import read_answers
from pipeline.prompts.benchmarks import Prompt
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.lineage import behind


def trained_keys(store: Store, draft: Artifact | Path | None) -> frozenset[str] | None:
    """Keys of the prompts whose answers ``draft`` was trained on; None where the store does not hold its answers."""
    answers = behind(store, draft).get("answers")
    if answers is None:
        return None
    rows = read_answers(answers.path, ["key", "split"]).to_pylist()
    return frozenset(row["key"] for row in rows if row["split"] == "train")


def trained_counts(
    store: Store, draft: Artifact | Path | None, prompts: Mapping[str, Sequence[Prompt]]
) -> dict[str, int] | None:
    """Benchmark -> how many of its ``prompts`` the draft was trained on; None as in ``trained_keys``."""
    keys = trained_keys(store, draft)
    if keys is None:
        return None
    return {name: sum(prompt.key in keys for prompt in listed) for name, listed in prompts.items()}
