"""``python -m pipeline stage=... [group=option] [key=value]``: compose, validate, run one stage or all."""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from data_specs.errors import UserError
from data_specs.manifest import MANIFEST, read_manifest
from pipeline import config as schema
from pipeline import console, ranks
from pipeline.store import listing
from pipeline.store.artifacts import Artifact, Store
from stages.compare import variants

CONF = str(Path(__file__).resolve().parent.parent / "conf")

# What the libraries do on two cores and more, measured: spinning OpenMP threads make two processes 30 times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def run_cache(config: schema.Config, store: Store, made: dict[str, Artifact]) -> None:
    """Prompts -> answers -> target cache; nothing where the steps after it are given a cache by name."""
    if config.cache and len(config.stage.steps) > 1:
        made["cache"] = store.resolve("cache", config.cache)
        console.say(f"cache={config.cache}: {made['cache'].path}")
        return
    answers = _call("stages.cache.answers", "run_answers", config, store)
    if answers is not None:
        _keep(made, "answers", answers)
        _keep(made, "cache", _call("stages.cache.capture", "run_capture", config, store, answers))


def run_train(config: schema.Config, store: Store, made: dict[str, Artifact]) -> None:
    """Target cache -> draft."""
    cache = _cache(config, store, made)
    _keep(made, "draft", _call("stages.train.loop", "run_train", config, store, cache))


def run_evaluate(config: schema.Config, store: Store, made: dict[str, Artifact]) -> None:
    """Draft -> evaluation; with ``engine`` a running server's, whose draft need not be named."""
    if config.engine is not None:
        served = None if config.draft is None else _draft(config, store, made)
        _keep(made, "evaluation", _call("stages.served.run", "run_served", config, store, served))
        return
    draft = _draft(config, store, made)
    _keep(made, "evaluation", _call("stages.evaluate.run", "run_evaluate", config, store, draft))


def run_study(config: schema.Config, store: Store, made: dict[str, Artifact]) -> None:
    """Draft -> study of serving under load; as the end of a chain only where ``study.in_chain`` asks for it."""
    if len(config.stage.steps) > 1 and not config.study.in_chain:
        return
    draft = _draft(config, store, made)
    _keep(made, "study", _call("stages.study.run", "run_study", config, store, draft))


def run_compare(config: schema.Config, store: Store, made: dict[str, Artifact]) -> None:
    """Target cache -> a draft and an evaluation of every variant -> comparison."""
    layout, cache = _layout(), _cache(config, store, made)
    if config.plan:
        if ranks.is_main():
            costs = {name: _training_cost(v.config, cache) for name, v in layout.variants.items()}
            _call("stages.compare.plan", "show_plan", config, layout, costs, store.root)
        return
    parts: dict[str, dict[str, Artifact]] = {}
    for number, (name, variant) in enumerate(layout.variants.items(), 1):
        if ranks.is_main():
            overrides = " ".join(variant.overrides).replace("[", r"\[")
            console.say(f"variant {number} of {len(layout.variants)}: {name} ({overrides})")
        parts[name] = {"cache": cache}
        with console.brief():
            run_train(variant.config, store, parts[name])
            run_evaluate(variant.config, store, parts[name])
        _say_length(name, parts[name]["evaluation"])
        gc.collect()  # a draft, its optimizer and a target each: not all of them at a time
    _keep(made, "comparison", _call("stages.compare.run", "run_compare", config, store, layout, parts))


def run_report(config: schema.Config, store: Store, made: dict[str, Artifact]) -> None:
    """Evaluations that are named -> one page with all of them."""
    _keep(made, "report", _call("stages.report.run", "run_report", config, store))


def run_export(config: schema.Config, store: Store, made: dict[str, Artifact]) -> None:
    """Draft -> what engines load."""
    for artifact in _call("stages.export.run", "run_export", config, store, _draft(config, store, made)):
        _keep(made, "export", artifact)


def run_import(config: schema.Config, store: Store, made: dict[str, Artifact]) -> None:
    """A draft that others trained -> draft."""
    if config.draft is None or not Path(config.draft).is_dir():
        raise schema.ConfigError(f"draft={config.draft}: expected the folder of a draft")
    _keep(made, "draft", _call("stages.export.adopt", "run_import", config, store, Path(config.draft)))


def run_list(config: schema.Config, store: Store, made: dict[str, Artifact]) -> None:
    """Show what is there."""
    listing.show(store)


STEPS: dict[str, Callable[[schema.Config, Store, dict[str, Artifact]], None]] = {
    "cache": run_cache,
    "train": run_train,
    "evaluate": run_evaluate,
    "study": run_study,
    "compare": run_compare,
    "report": run_report,
    "export": run_export,
    "import": run_import,
    "list": run_list,
}

QUICK = {"list", "report", "export", "import"}  # steps that one process does, whatever GPUs there are


def run(config: schema.Config) -> None:
    """Run the steps of ``config.stage`` in order; what one makes, the next reads."""
    store = Store(config.artifacts)
    made: dict[str, Artifact] = {}
    # What is wrong with the last of several runs is said before the first.
    several = "compare" in config.stage.steps
    for each in [v.config for v in _layout().variants.values()] if several else [config]:
        _check_start(each, store)
    for step in config.stage.steps:
        before = dict(made)
        STEPS[step](config, store, made)
        if config.plan and made == before and step != config.stage.steps[-1]:
            console.say("The plan ends here: what comes next depends on an artifact that is not made yet.")
            return
    if made and len(config.stage.steps) > 1 and ranks.is_main():
        _show_made(made)


def _check_start(config: schema.Config, store: Store) -> None:
    """Raise ``UserError`` where ``drafter.init.draft`` names no draft, before hours of work lead up to it."""
    source = config.drafter.init.draft
    if source is not None and not Path(source).is_dir():
        store.resolve("draft", source)


def _show_made(made: dict[str, Artifact]) -> None:
    """The last screen of a chain: what there is now, and what to type next."""
    python = os.path.relpath(sys.executable) if sys.prefix != sys.base_prefix else "python"
    console.panel(
        "Made, or found made",
        [
            *(f"{kind:<11} {artifact.reference:<24} {artifact.path}" for kind, artifact in made.items()),
            "",
            f"all artifacts and their lineage    {python} -m pipeline stage=list",
            f"a better draft, some hours         {python} -m pipeline stage=all experiment=smollm2",
        ],
    )


def _call(module: str, function: str, *arguments: object) -> Any:
    """Stages are imported when they run: composing and ``--help`` stay quick."""
    return getattr(importlib.import_module(module), function)(*arguments)


def _cache(config: schema.Config, store: Store, made: dict[str, Artifact]) -> Artifact:
    """The target cache that was just made, or the one that is named."""
    name = config.cache or f"{config.target.name}_{config.data.name}"
    return made.get("cache") or store.resolve("cache", name)


def _draft(config: schema.Config, store: Store, made: dict[str, Artifact]) -> Artifact | Path:
    """The draft that was just made, or the one that is named: an artifact, an export, or a folder of others."""
    if "draft" in made:
        return made["draft"]
    reference = config.draft or f"{config.target.name}_{config.drafter.name}"
    folder = Path(reference)
    if (folder / "config.json").is_file() and not (folder / MANIFEST).is_file():
        return folder
    if (folder / MANIFEST).is_file() and read_manifest(folder).kind == "export":
        return folder
    return store.resolve("draft", reference)


def _layout() -> variants.Comparison:
    """The variants of a comparison, composed as this run is, each with overrides of its own."""
    return _laid_out(tuple(HydraConfig.get().overrides.task))


@functools.cache
def _laid_out(task: tuple[str, ...]) -> variants.Comparison:
    base = schema.resolve(hydra.compose("config", list(task)))
    return variants.lay_out(base, lambda more: hydra.compose("config", [*task, *more]))


def _training_cost(config: schema.Config, cache: Artifact) -> Any:
    """Steps, time and disk of training one variant. What the draft starts from does not matter to them."""
    plan = importlib.import_module("stages.train.plan")
    drafter = dataclasses.replace(config.drafter, init=schema.InitConfig())
    setup = plan.prepare(dataclasses.replace(config, drafter=drafter), cache)
    rate = plan.USED_SHARE * _matmul_rate(config.train.dtype) * ranks.wanted(config.ranks)
    size = 2 * setup.parameters * setup.save_dtype.itemsize  # the best draft and the last
    seconds = setup.steps * plan.step_flops(setup) / rate
    return _call("stages.compare.plan", "Cost", setup.steps, seconds, size)


def _say_length(name: str, evaluation: Artifact) -> None:
    """One line about a variant that is done."""
    counts = evaluation.manifest.counts
    length = counts.get("accepted_length")
    if length is not None and ranks.is_main():
        console.say(f"{name}: accepted length {length:.2f} on {counts['prompts']} prompts")


@functools.cache
def _matmul_rate(dtype: str) -> float:
    """Measured once: what is planned is to be compared, and a shared machine's speed drifts."""
    return importlib.import_module("stages.train.plan").matmul_rate(dtype)


def _keep(made: dict[str, Artifact], kind: str, artifact: Artifact | None) -> None:
    if artifact is not None:
        made[kind] = artifact


@hydra.main(version_base=None, config_path=CONF, config_name="config")
def _compose_and_run(cfg: DictConfig) -> None:
    try:
        config = schema.resolve(cfg)
        ranks.adopt_environment()
        alone = set(config.stage.steps) <= QUICK or config.engine is not None or config.plan
        if ranks.needs_start(config.ranks) and not alone:
            _start(config)
        else:
            run(config)
    except (UserError, OmegaConfBaseException) as error:
        _fail(error)


def _start(config: schema.Config) -> None:
    """Start the processes with the very overrides of this one, then end as they ended."""
    overrides = list(HydraConfig.get().overrides.task)
    code = ranks.start(config.ranks or max(1, ranks.visible_gpus()), overrides)
    if code:
        sys.exit(code)


def _fail(error: Exception) -> None:
    """One clear line instead of a traceback (DRAFTLINE_TRACEBACK=1 shows where it came from)."""
    if os.environ.get("DRAFTLINE_TRACEBACK"):
        raise error
    logging.getLogger("draftline").debug("failed", exc_info=error)
    print(f"draftline: error: {error}", file=sys.stderr)
    sys.exit(2)


def listed(arguments: list[str]) -> list[str]:
    """``arguments`` with ``evaluations=a,b`` and ``export=a,b`` as lists: bare commas would be a sweep to Hydra.

    After ``-m`` they are one. A list of ``export`` is that of its formats: Hydra would merge the group's files, where
    the last list replaces the others.
    """
    if not {"-m", "--multirun"} & set(arguments):
        commas = re.compile(r"^(evaluations=|export=(?=.*,))([^\[].*)$")
        arguments = [commas.sub(r"\1[\2]", text) for text in arguments]
    return [re.sub(r"^export=(?=\[)", "export.formats=", text) for text in arguments]


def main() -> None:
    """Entry point."""
    # "generated new fontManager" tells a user nothing.
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    sys.argv = listed(ranks.drop_launcher_arguments(sys.argv))
    schema.register()
    _compose_and_run()


if __name__ == "__main__":
    main()
