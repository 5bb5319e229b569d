"""``stage=list``: the artifacts as a table, and their lineage as a tree."""

from __future__ import annotations

import os
import sys

from rich.tree import Tree

from pipeline import console
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.leftovers import leftovers

# The counts of a manifest that the table shows.
SHOWN = (
    "variants", "evaluations", "points", "prompts", "samples", "tokens", "supervised_tokens", "steps",
    "accepted_length",
)  # fmt: skip
# Each kind comes after the kinds that it may be made from.
ORDER = ("answers", "cache", "draft", "evaluation", "study", "comparison", "export", "report")


def show(store: Store) -> None:
    """Print every committed artifact below the store's root, and what is not committed."""
    artifacts = store.list()
    if left := list(leftovers(store.root)):
        console.table(
            "Not committed: of a run that goes on, or left behind by one that was killed",
            ("path", "size", "last change", "goes on with"),
            [(str(x.path), console.size(x.size), f"{console.duration(x.seconds)} ago", str(x)) for x in left],
        )
    if not artifacts:
        console.say(
            f"No artifacts under {store.root} yet. Make some: python -m pipeline stage=all experiment=quickstart"
        )
        return
    rows = [(a.manifest.kind, a.reference, summary(a), a.manifest.created, str(a.path)) for a in artifacts]
    console.table(f"Artifacts under {store.root}", ("kind", "reference", "holds", "made", "path"), rows)
    console.console.print(lineage(artifacts))


def show_made(made: dict[str, Artifact]) -> None:
    """Print the last screen of a chain: its artifacts by kind, and the next commands to type."""
    python = os.path.relpath(sys.executable) if sys.prefix != sys.base_prefix else "python"
    console.panel(
        "Artifacts (new or reused)",
        [
            *(f"{kind:<11} {artifact.reference:<24} {artifact.path}" for kind, artifact in made.items()),
            "",
            f"all artifacts and their lineage    {python} -m pipeline stage=list",
            f"a better draft, some hours         {python} -m pipeline stage=all experiment=smollm2",
        ],
    )


def summary(artifact: Artifact) -> str:
    """The counts as text, for example ``357 samples, 61,204 tokens``."""
    counts = artifact.manifest.counts
    parts = [f"{_number(counts[name])} {name.replace('_', ' ')}" for name in SHOWN if name in counts]
    return ", ".join(parts) or "-"


def lineage(artifacts: list[Artifact]) -> Tree:
    """A tree with every artifact below the one it was made from; a comparison is below one of its parents."""
    tree = Tree("lineage")
    nodes: dict[str, Tree] = {}
    for artifact in sorted(artifacts, key=lambda a: ORDER.index(a.manifest.kind)):
        parent = next((nodes[p] for p in artifact.manifest.parents.values() if p in nodes), tree)
        nodes[artifact.manifest.fingerprint] = parent.add(f"{artifact.manifest.kind} {artifact.reference}")
    return tree


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
