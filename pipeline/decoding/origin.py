"""What a draft was made from, as far as the store knows: its target, its data and the prompts of its training."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from omegaconf import OmegaConf

from data_specs.answers import read_answers
from pipeline.config import Config, DataConfig, TargetConfig
from pipeline.prompts.benchmarks import Prompt
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.lineage import behind

MACHINE = {"device", "tensor_parallel"}  # keys of the target that depend on this machine
Group = TypeVar("Group", TargetConfig, DataConfig)


def with_own(config: Config, store: Store, draft: Artifact | Path, task: Sequence[str]) -> Config:
    """``config`` with the target and the data of ``draft``, if its manifests have them.

    The keys that the user overrides (``task``) keep their values in ``config``. An override of ``target``,
    ``target.path``, ``target.package``, ``data`` or ``data.sources`` keeps its whole group.
    """
    named = {override.lstrip("+~").partition("=")[0] for override in task}
    made = {kind: artifact.manifest.config for kind, artifact in behind(store, draft).items()}
    trained = made.get("draft", {})
    # A run that trained on a named cache may have other data in its config, so its answers are asked first.
    target, data = trained.get("target"), made.get("answers", trained).get("data")
    changes: dict[str, TargetConfig | DataConfig] = {}
    if target and not {"target", "target.path", "target.package"} & named:
        changes["target"] = _own(config.target, target, MACHINE | _fields("target", named))
    if data and not {"data", "data.sources"} & named:
        changes["data"] = _own(config.data, data, _fields("data", named))
    return dataclasses.replace(config, **cast(Any, changes)) if changes else config


def _fields(group: str, named: Collection[str]) -> set[str]:
    return {key.split(".")[1] for key in named if key.startswith(f"{group}.")}


def _own(mine: Group, recorded: Mapping[str, Any], kept: Collection[str]) -> Group:
    """The group in a manifest (``recorded``) without unknown fields, and with the fields ``kept`` of ``mine``."""
    known = {name: value for name, value in recorded.items() if name in mine.__dataclass_fields__}
    own = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(type(mine)), known))
    return cast(Group, dataclasses.replace(cast(Any, own), **{name: getattr(mine, name) for name in kept}))


def trained_keys(store: Store, draft: Artifact | Path | None) -> frozenset[str] | None:
    """Keys of the prompts that ``draft`` was trained on; None if the store does not have its answers."""
    answers = behind(store, draft).get("answers")
    if answers is None:
        return None
    rows = read_answers(answers.path, ["key", "split"]).to_pylist()
    return frozenset(row["key"] for row in rows if row["split"] == "train")


def trained_counts(
    store: Store, draft: Artifact | Path | None, prompts: Mapping[str, Sequence[Prompt]]
) -> dict[str, int] | None:
    """How many ``prompts`` of each benchmark the draft was trained on; None as in ``trained_keys``."""
    keys = trained_keys(store, draft)
    if keys is None:
        return None
    return {name: sum(prompt.key in keys for prompt in listed) for name, listed in prompts.items()}


def unwanted(store: Store, draft: Artifact | Path, prompts: Mapping[str, Sequence[Prompt]]) -> frozenset[str]:
    """Keys of the prompts that no calibration may use: the reported ``prompts``, and those trained on."""
    reported = frozenset(prompt.key for listed in prompts.values() for prompt in listed)
    return reported | (trained_keys(store, draft) or frozenset())
