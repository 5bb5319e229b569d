"""Configs as ``python -m pipeline`` makes them: Hydra's own composition, without a process."""

import functools
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from pipeline import config as schema

CONF = Path(__file__).parents[1] / "conf"


@functools.cache
def by_hydra(*overrides: str) -> DictConfig:
    """What Hydra composes of ``overrides``, not yet checked."""
    schema.register()
    with initialize_config_dir(str(CONF), version_base=None):
        return compose("config", overrides=list(overrides))


def composed(*overrides: str) -> schema.Config:
    """The config of these overrides; values are merged into what Hydra makes of the groups, which takes a while."""
    values = [o for o in overrides if "." in o.split("=")[0]]
    groups = by_hydra(*(o for o in overrides if o not in values))
    return schema.resolve(OmegaConf.merge(groups, OmegaConf.from_dotlist(values)))
