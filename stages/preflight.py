"""Collects the checks of all steps of a run, variants of a comparison or jobs of a sweep before the first begins."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from data_specs.errors import UserError
from data_specs.manifest import fingerprint
from pipeline import console
from pipeline.config import Config, explained, refuse_own_secrets, resolve, section
from pipeline.preflight import Ahead, Check, problems, refuse, room
from stages.compare.variants import composed_variants


def of_steps(ahead: Ahead, task: tuple[str, ...]) -> dict[str, list[Check]]:
    """The checks of each step of ``ahead.config``, by step; ``task`` are the overrides that compose the config.

    If the user names an export format, a draft that the run trains is also checked against the limits of that format.
    """
    config, found = ahead.config, {}
    if "compare" in config.stage.steps:
        composed_variants(task)  # an impossible variant raises here, before the other checks
    named = any(item.startswith(("export=", "export.formats=")) for item in task)
    exported = ["export"] * (named and "train" in config.stage.steps and "export" not in config.stage.steps)
    for step in [*config.stage.steps, *exported]:
        found[step] = checks_of(step, ahead, task)
        ahead = ahead.after(step)
    listed = [check for checks in found.values() for check in checks]
    if any(check.least_bytes for check in listed):
        found["disk"] = [room(listed, ahead.store.root)]
    return found


def checks_of(step: str, ahead: Ahead, task: tuple[str, ...]) -> list[Check]:
    """The checks of ``step``; a step that takes only a moment has none."""
    if step == "compare":
        return checks_of_variants(ahead, task)
    if step == "evaluate" and ahead.config.engine is not None:
        step = "served"
    # Imported only when needed, because some import torch or libraries that other commands do not need.
    match step:
        case "cache":
            from stages.cache.checks import checks
        case "train":
            from stages.train.checks import checks
        case "evaluate":
            from stages.evaluate.checks import checks
        case "served":
            from stages.served.checks import checks
        case "study":
            from stages.study.checks import checks
        case "export":
            from stages.export.checks import checks
        case _:
            return []
    if step in ("evaluate", "study") or (step == "served" and ahead.config.draft is not None):
        ahead = with_own_target(ahead, task)
    return checks(ahead)


def with_own_target(ahead: Ahead, task: tuple[str, ...]) -> Ahead:
    """``ahead`` with the target and the data of its draft, if that draft exists already."""
    from pipeline.decoding.origin import with_own

    try:
        return replace(ahead, config=with_own(ahead.config, ahead.store, ahead.draft(), task))
    except UserError:  # a later step makes the draft, or the check of the draft reports this error
        return ahead


def checks_of_variants(ahead: Ahead, task: tuple[str, ...]) -> list[Check]:
    """The checks for training and evaluating each variant of a comparison; equal evaluations are checked once."""
    found, asked = [], set()
    for name, variant in composed_variants(task).variants.items():
        each = replace(ahead, config=variant.config)
        own = checks_of("train", each, task)
        question = fingerprint(section(variant.config.evaluate), variant.config.drafter.confidence_head)
        if question not in asked:
            own += checks_of("evaluate", each.after("train"), task)
        asked.add(question)
        found += [replace(check, name=f"{name}: {check.name}") for check in own]
    return found


def check_sweep(jobs: list[list[str]]) -> None:
    """Raise ``PreflightError`` with the problems of all ``jobs`` of a sweep; each job is a list of overrides."""
    told: dict[Check, list[str]] = {}
    ahead: frozenset[tuple[str, str]] = frozenset()
    for number, task in enumerate(jobs):
        try:
            config = resolve(hydra.compose("config", task))
            if config.plan:
                return
            checks = of_steps(Ahead(config, ahead), tuple(task)).values()
            for step in config.stage.steps:
                ahead = Ahead(config, ahead).after(step).coming
            found = problems([check for listed in checks for check in listed])
        except (UserError, HydraException, OmegaConfBaseException) as error:
            found = [Check("config", "problem", explained(error, Config))]
        for check in found:
            told.setdefault(check, []).append(f"{number}")
    refuse([replace(check, name=f"job {', '.join(of)}: {check.name}") for check, of in told.items()])


class StartCallback(Callback):
    """Checks before Hydra writes or runs anything (conf/config.yaml): a run for secrets, a sweep for all problems."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """End the program where a URL in the config has a secret."""
        try:
            refuse_own_secrets(config)
        except UserError as error:
            console.fail(error)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Compose and check every job. Hydra would only warn of an exception, so this method ends the program."""
        given = [f"{key}={value}" for key, value in (config.hydra.sweeper.get("params") or {}).items()]
        try:
            check_sweep(combinations([*given, *config.hydra.overrides.task]))
        except UserError as error:
            console.fail(error)


def combinations(arguments: list[str]) -> list[list[str]]:
    """The overrides of every job of a sweep over ``arguments``, in Hydra's order."""
    loader = GlobalHydra.instance().config_loader()
    choices = {
        override.get_key_element(): [
            f"{override.get_key_element()}={value}"
            for value in (
                override.sweep_string_iterator()
                if override.is_sweep_override()
                else [override.get_value_element_as_str()]
            )
        ]
        for override in OverridesParser.create(config_loader=loader).parse_overrides(arguments)
    }
    return [list(job) for job in itertools.product(*choices.values())]
