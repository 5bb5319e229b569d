"""``stage=compare``: the evaluations of all variants -> a versioned comparison.

pipeline/__main__.py runs the stages train and evaluate for one variant after the other. Their artifacts are found again
by fingerprint, so a comparison that was killed goes on where it stopped.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from data_specs.evaluation import read_rounds
from data_specs.manifest import fingerprint
from data_specs.results.comparison import ComparisonFacts, ComparisonResult, StepShare, VariantRecord
from pipeline import console
from pipeline.config import Config, section
from pipeline.drafts.folders.checkpoint import load
from pipeline.drafts.model import Model
from pipeline.drafts.registry import supervised
from pipeline.ranks import is_main
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.work import begin_once, commit_once
from pipeline.target.files import device_of
from pipeline.target.tensors import load_tensors
from stages.compare.latency import measure
from stages.compare.report import show, write_report
from stages.compare.tables import VariantEvaluation, figure, main_table
from stages.compare.variants import Comparison

KIND, SCHEMA_VERSION = "comparison", 1

Parts = dict[str, Artifact]  # kind -> artifact: cache, draft and evaluation
Made = dict[str, Parts]  # variant -> its parts


def run_compare(config: Config, store: Store, layout: Comparison, made: Made) -> Artifact:
    """Put the evaluations of ``made`` side by side as ``layout`` says; returns the comparison, new or reused.

    Raises ``PairingError`` if the variants of a table or figure have no prompt in common.
    """
    parents = {name: parts["evaluation"].manifest.fingerprint for name, parts in made.items()}
    inputs = fingerprint(SCHEMA_VERSION, section(config.compare), config.evaluate.bootstrap, parents)
    found = store.find(KIND, inputs)
    if found is not None and is_main():
        console.say(f"Reusing the comparison {found.reference} ({found.path})")
    artifact = found or _commit(config, store, layout, made, inputs, parents)
    if is_main():
        show(artifact)
    return artifact


def make_variants(layout: Comparison, cache: Artifact, make: Callable[[Config, Parts], None]) -> Made:
    """Call ``make`` for one variant after the other; it trains a draft from ``cache`` and evaluates it."""
    made: Made = {}
    for number, (name, variant) in enumerate(layout.variants.items(), 1):
        if is_main():
            overrides = " ".join(variant.overrides).replace("[", r"\[")
            console.say(f"variant {number} of {len(layout.variants)}: {name} ({overrides})")
        made[name] = {"cache": cache}
        with console.brief():
            make(variant.config, made[name])
        counts = made[name]["evaluation"].manifest.counts
        length = counts.get("accepted_length")
        if length is not None and is_main():
            console.say(f"{name}: accepted length {length:.2f} on {counts['prompts']} prompts")
        gc.collect()  # The memory holds the draft, optimizer and target of one variant only.
    return made


def _commit(
    config: Config, store: Store, layout: Comparison, made: Made, inputs: str, parents: dict[str, str]
) -> Artifact:
    """Let one of the ranks make and commit the comparison with the fingerprint ``inputs``."""
    recorded = {name: section(getattr(config, name)) for name in ("target", "train", "evaluate", "compare")}
    name = f"{config.target.name}_{config.compare.name}"
    work = begin_once(store, KIND, name, SCHEMA_VERSION, inputs, parents, recorded)
    if isinstance(work, Artifact):
        return work
    folder = work.path

    def finish() -> dict[str, Any]:
        result = compare(config, layout, made)
        write_report(folder, result)
        average = result.table.rows[result.table.order[-1]]
        return {
            "variants": len(result.order),
            "steps": result.facts.steps,
            "prompts": result.table.prompts,
            "accepted_length": max(figure.value or 0.0 for figure in average.accepted_length.values()),
        }

    return commit_once(store, work, finish)


def compare(config: Config, layout: Comparison, made: Made) -> ComparisonResult:
    """The contents of comparison.json."""
    measured = {
        name: VariantEvaluation(
            read_rounds(made[name]["evaluation"].path), supervised(variant.config.drafter).drafts
        )
        for name, variant in layout.variants.items()
    }
    benchmarks, resamples = config.evaluate.benchmarks, config.evaluate.bootstrap
    table = main_table({d: measured[v] for d, v in layout.table.items()}, benchmarks, resamples, layout.table)
    latencies = _latencies(config, layout, made)
    figures = {}
    for name, lines in layout.figures.items():
        asked = config.compare.figures[name]
        latency = {d: [latencies[v] for v in vs] for d, vs in lines.items()} if asked.latency else None
        figures[name] = figure(asked, lines, measured, benchmarks, resamples, latency)
    return ComparisonResult(
        facts=_facts(config, made),
        table=table,
        figures=figures,
        figure_order=list(figures),  # JSON objects are written with sorted keys
        variants={name: _described(layout, name, parts) for name, parts in made.items()},
        order=list(layout.variants),
    )


def _latencies(config: Config, layout: Comparison, made: Made) -> dict[str, StepShare]:
    """Variant -> the time of its draft step, for the figures that ask for it."""
    asked = [lines for name, lines in layout.figures.items() if config.compare.figures[name].latency]
    names = list(dict.fromkeys(v for lines in asked for variants in lines.values() for v in variants))
    if not names:
        return {}
    tensors, device = load_tensors(config.target), device_of(config.target)
    found = {}
    with console.progress("timing draft steps", len(names)) as bar:
        for name in names:
            draft = load(made[name]["draft"].path, tensors).to(device=device, dtype=tensors.head.dtype)
            assert isinstance(draft, Model), "every draft of the registry is one"
            found[name] = measure(draft, seed=config.seed)
            bar.advance(1, name)
    return found


def _facts(config: Config, made: Made) -> ComparisonFacts:
    first = next(iter(made.values()))
    return ComparisonFacts(
        target=config.target.name,
        cache=first["cache"].reference,
        steps=first["draft"].manifest.counts["steps"],
        global_batch=first["draft"].manifest.config["train"]["global_batch"],
        anchors=config.train.anchors,
        seed=config.seed,
        sampler=first["evaluation"].manifest.config["sampler"],
        max_new_tokens=config.evaluate.max_new_tokens,
        device=str(device_of(config.target)),
        dtype=config.target.dtype,
    )


def _described(layout: Comparison, name: str, parts: dict[str, Artifact]) -> VariantRecord:
    counts = parts["draft"].manifest.counts
    return VariantRecord(
        overrides=list(layout.variants[name].overrides),
        draft=parts["draft"].reference,
        evaluation=parts["evaluation"].reference,
        trainable=counts["trainable"],
        steps=counts["steps"],
        heldout_length=counts["best_accepted_length"],
    )
