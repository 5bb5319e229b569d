"""``python -m pipeline stage=... [group=option] [key=value]``: compose, validate, run one stage or all."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from data_specs.errors import UserError
from pipeline import config as schema
from pipeline import console, listing, ranks
from pipeline.artifacts import Artifact, Store

CONF = str(Path(__file__).resolve().parent.parent / "conf")

# What the libraries do on two cores and more, measured: spinning OpenMP threads make two processes 30 times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def run_cache(config: schema.Config, store: Store, made: dict[str, Artifact]) -> None:
    """Prompts -> answers -> target cache."""
    answers = _call("stages.cache.answers", "run_answers", config, store)
    if answers is not None:
        _keep(made, "answers", answers)
        _keep(made, "cache", _call("stages.cache.capture", "run_capture", config, store, answers))


def run_train(config: schema.Config, store: Store, made: dict[str, Artifact]) -> None:
    """Target cache -> draft."""
    cache = made.get("cache") or store.resolve(
        "cache", config.cache or f"{config.target.name}_{config.data.name}"
    )
    _keep(made, "draft", _call("stages.train.loop", "run_train", config, store, cache))


def run_evaluate(config: schema.Config, store: Store, made: dict[str, Artifact]) -> None:
    """Draft -> evaluation."""
    draft: Artifact | Path | None = made.get("draft")
    if draft is None:
        reference = config.draft or f"{config.target.name}_{config.drafter.name}"
        folder = Path(reference)
        foreign = (folder / "config.json").is_file() and not (folder / "manifest.json").is_file()
        draft = folder if foreign else store.resolve("draft", reference)
    _keep(made, "evaluation", _call("stages.evaluate.run", "run_evaluate", config, store, draft))


def run_list(config: schema.Config, store: Store, made: dict[str, Artifact]) -> None:
    """Show what is there."""
    listing.show(store)


STEPS: dict[str, Callable[[schema.Config, Store, dict[str, Artifact]], None]] = {
    "cache": run_cache,
    "train": run_train,
    "evaluate": run_evaluate,
    "list": run_list,
}


def run(config: schema.Config) -> None:
    """Run the steps of ``config.stage`` in order; what one makes, the next reads."""
    store = Store(config.artifacts)
    made: dict[str, Artifact] = {}
    for step in config.stage.steps:
        before = dict(made)
        STEPS[step](config, store, made)
        if config.plan and made == before and step != config.stage.steps[-1]:
            console.say("The plan ends here: what comes next depends on an artifact that is not made yet.")
            return
    if made and len(config.stage.steps) > 1 and ranks.is_main():
        _show_made(made)


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


def _call(module: str, function: str, *arguments: object) -> Artifact | None:
    """Stages are imported when they run: composing and ``--help`` stay quick."""
    return getattr(importlib.import_module(module), function)(*arguments)


def _keep(made: dict[str, Artifact], kind: str, artifact: Artifact | None) -> None:
    if artifact is not None:
        made[kind] = artifact


@hydra.main(version_base=None, config_path=CONF, config_name="config")
def _compose_and_run(cfg: DictConfig) -> None:
    try:
        config = schema.resolve(cfg)
        ranks.adopt_environment()
        if ranks.needs_start(config.ranks) and config.stage.steps != ["list"] and not config.plan:
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


def main() -> None:
    """Entry point."""
    sys.argv = ranks.drop_launcher_arguments(sys.argv)
    schema.register()
    _compose_and_run()


if __name__ == "__main__":
    main()
