"""``python -m pipeline stage=... [group=option] [key=value]``: compose, validate, run one stage or all."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from data_specs.errors import UserError
from pipeline import console, ranks
from pipeline.config import Config, ConfigError, explained, register, resolve
from pipeline.config.keys import refuse_unknown
from pipeline.preflight import Ahead, Check, names_cache, problems, refuse, show
from pipeline.store import listing
from pipeline.store.artifacts import Artifact, Store
from stages import preflight
from stages.compare.variants import composed_variants

CONF = str(Path(__file__).resolve().parent.parent / "conf")

# Spinning OpenMP threads make two processes 30 times slower (measured).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def run_cache(config: Config, store: Store, made: dict[str, Artifact]) -> None:
    """Prompts -> answers -> target cache; nothing is made if the later steps have a named cache."""
    if names_cache(config):
        made["cache"] = Ahead(config).cache()
        console.say(f"cache={config.cache}: {made['cache'].path}")
        return
    from stages.cache import answers, capture

    answered = answers.run_answers(config, store)
    if answered is not None:
        _keep(made, "answers", answered)
        _keep(made, "cache", capture.run_capture(config, store, answered))


def run_train(config: Config, store: Store, made: dict[str, Artifact]) -> None:
    """Target cache -> draft."""
    from stages.train import loop

    _keep(made, "draft", loop.run_train(config, store, _cache(config, made)))


def run_evaluate(config: Config, store: Store, made: dict[str, Artifact]) -> None:
    """Draft -> evaluation; with ``engine``, of a running server, whose draft need not be named."""
    if config.engine is not None:
        from stages.served import run as served

        draft = None if config.draft is None else _draft(config, made)
        own = config if draft is None else _own(config, store, draft)
        _keep(made, "evaluation", served.run_served(own, store, draft))
        return
    from stages.evaluate import run as evaluate

    draft = _draft(config, made)
    _keep(made, "evaluation", evaluate.run_evaluate(_own(config, store, draft), store, draft))


def run_study(config: Config, store: Store, made: dict[str, Artifact]) -> None:
    """Draft -> study of serving under load; in a chain only if ``study.in_chain`` is set."""
    if len(config.stage.steps) > 1 and not config.study.in_chain:
        return
    from stages.study import run as study

    draft = _draft(config, made)
    _keep(made, "study", study.run_study(_own(config, store, draft), store, draft))


def run_compare(config: Config, store: Store, made: dict[str, Artifact]) -> None:
    """Target cache -> a draft and an evaluation for every variant -> comparison."""
    from stages.compare import run as compare

    layout, cache = composed_variants(_task()), _cache(config, made)

    def make(variant: Config, parts: dict[str, Artifact]) -> None:
        run_train(variant, store, parts)
        run_evaluate(variant, store, parts)

    if not config.plan:
        parts = compare.make_variants(layout, cache, make)
        _keep(made, "comparison", compare.run_compare(config, store, layout, parts))
    elif ranks.is_main():
        from stages.compare import plan
        from stages.train.plan import cost

        costs = {name: plan.Cost(*cost(v.config, cache)) for name, v in layout.variants.items()}
        plan.show_plan(config, layout, costs, store.root)


def run_report(config: Config, store: Store, made: dict[str, Artifact]) -> None:
    """Named evaluations -> one page with all of them."""
    from stages.report import run as report

    _keep(made, "report", report.run_report(config, store))


def run_export(config: Config, store: Store, made: dict[str, Artifact]) -> None:
    """Draft -> folders that engines load."""
    from stages.export import run as export

    for artifact in export.run_export(config, store, _draft(config, made)):
        _keep(made, "export", artifact)


def run_import(config: Config, store: Store, made: dict[str, Artifact]) -> None:
    """Draft trained elsewhere -> draft."""
    from stages.export import adopt

    if config.draft is None or not Path(config.draft).is_dir():
        raise ConfigError(f"draft={config.draft}: expected the folder of a draft")
    _keep(made, "draft", adopt.run_import(config, store, Path(config.draft)))


def run_list(config: Config, store: Store, made: dict[str, Artifact]) -> None:
    """Show all artifacts."""
    listing.show(store)


STEPS: dict[str, Callable[[Config, Store, dict[str, Artifact]], None]] = {
    "cache": run_cache, "train": run_train, "evaluate": run_evaluate, "study": run_study, "compare": run_compare,
    "report": run_report, "export": run_export, "import": run_import, "list": run_list,
}  # fmt: skip

QUICK = {"list", "report", "export", "import"}  # steps that need only one process


def run(config: Config, found: Mapping[str, list[Check]] | None = None) -> None:
    """Run the steps of ``config.stage`` in order; each step reads what earlier steps made.

    ``found`` are the checks of the steps. A plan shows them and ends before a step that has a problem.
    """
    store = Store(config.artifacts)
    made: dict[str, Artifact] = {}
    asked = found or {}
    if config.plan and any(asked.values()) and ranks.is_main():
        show([check for checks in asked.values() for check in checks])
    if len(config.stage.steps) > 1 and not config.plan and ranks.is_main():
        console.say(
            f"{config.target.name}: {', then '.join(config.stage.steps)}. Everything is kept in {store.root}. You can "
            "stop this at any moment; the same command goes on from there."
        )
    for step in config.stage.steps:
        if config.plan and problems(asked.get(step, [])):
            console.say(
                f"The plan ends before the step {step}, which has a problem: the run would be refused."
            )
            return
        before = dict(made)
        STEPS[step](config, store, made)
        if config.plan and made == before and step != config.stage.steps[-1]:
            console.say("The plan ends here: what comes next depends on an artifact that is not made yet.")
            return
    if made and len(config.stage.steps) > 1 and ranks.is_main():
        listing.show_made(made)


def _cache(config: Config, made: dict[str, Artifact]) -> Artifact:
    """The target cache that was just made, or the named one."""
    return made.get("cache") or Ahead(config).cache()


def _draft(config: Config, made: dict[str, Artifact]) -> Artifact | Path:
    """The draft that was just made, or the named one."""
    return made.get("draft") or Ahead(config).draft()


def _own(config: Config, store: Store, draft: Artifact | Path) -> Config:
    """``config`` with the target and the data that ``draft`` was trained with, unless the command line names others."""
    from pipeline.decoding.origin import with_own

    own = with_own(config, store, draft, _task() if HydraConfig.initialized() else ())
    if own is not config and ranks.is_main():
        with_these = f"target={own.target.name} and data={own.data.name}"
        console.say(f"{with_these}, with which the draft was trained (the command line may name others)")
    return own


def _task() -> tuple[str, ...]:
    """The overrides that were typed for this job."""
    return tuple(HydraConfig.get().overrides.task)


def _keep(made: dict[str, Artifact], kind: str, artifact: Artifact | None) -> None:
    if artifact is not None:
        made[kind] = artifact


@hydra.main(version_base=None, config_path=CONF, config_name="config")
def _compose_and_run(cfg: DictConfig) -> None:
    try:
        config = resolve(cfg)
        ranks.adopt_environment()
        ranks.end_with_launcher()
        # Processes that ``ranks.start`` started need no checks: the process that started them made these.
        found = {} if ranks.STARTED in os.environ else preflight.of_steps(Ahead(config), _task())
        if not config.plan:
            refuse([check for checks in found.values() for check in checks])
        alone = set(config.stage.steps) <= QUICK or config.engine is not None or config.plan
        if not alone and ranks.needs_start(config.ranks):
            # The processes get the overrides of this one, which ends with their exit code.
            if code := ranks.start(ranks.wanted(config.ranks), _task()):
                sys.exit(code)
        else:
            run(config, found)
    except (UserError, OmegaConfBaseException, OSError, KeyboardInterrupt) as error:
        console.fail(error, cfg.get("artifacts"))


def listed(arguments: list[str]) -> list[str]:
    """``arguments`` with ``evaluations=a,b`` and ``export=a,b`` as lists, because Hydra reads bare commas as a sweep.

    After ``-m`` they are a sweep. A list for ``export`` becomes ``export.formats``, because Hydra would merge the files
    of the group so that the last list of formats replaces the others.
    """
    if not {"-m", "--multirun"} & set(arguments):
        commas = re.compile(r"^(evaluations=|export=(?=.*,))([^\[].*)$")
        arguments = [commas.sub(r"\1[\2]", text) for text in arguments]
    return [re.sub(r"^export=(?=\[)", "export.formats=", text) for text in arguments]


def _check_before_printing(arguments: list[str]) -> None:
    """With ``--cfg``, refuse unknown keys: Hydra prints the config without calling our main function."""
    if {"--cfg", "-c"} & set(arguments):
        overrides = [text for text in arguments if re.match(r"[~+\w][^=]*=", text)]
        with hydra.initialize_config_dir(CONF, version_base=None):
            refuse_unknown(hydra.compose("config", overrides), Config)


def main() -> None:
    """Entry point."""
    # "generated new fontManager" is no help to a user.
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    # Hydra then raises its errors instead of printing them, so that they are shown like all others.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    sys.argv = listed(ranks.drop_launcher_arguments(sys.argv))
    register()
    try:
        _check_before_printing(sys.argv[1:])
        _compose_and_run()
    except (ConfigError, OSError, KeyboardInterrupt) as error:
        console.fail(error)
    except (HydraException, OmegaConfBaseException) as error:
        console.fail(ConfigError(explained(error, Config)))


if __name__ == "__main__":
    main()
