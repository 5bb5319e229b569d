"""Configs as ``python -m pipeline`` makes them: Hydra's own composition, without a process."""

import functools
import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from pipeline import config as schema

CONF = Path(__file__).parents[1] / "conf"
QUOTE = "'"


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


def refusal(*overrides: str) -> str:
    """The message of the error that these overrides get, and must get."""
    with pytest.raises(schema.ConfigError) as error:
        composed(*overrides)
    return str(error.value)


def out_of_range(override: str) -> str:
    """The key and the value that the error about ``override`` names, as ``key=value``."""
    message = refusal(override)
    found = re.fullmatch(r"([\w.\[\]]+): expected .*, got (.*)", message)
    return f"{found[1]}={found[2].strip(QUOTE)}" if found else message


def accepted(override: str, *others: str) -> str:
    """The key of ``override`` and the value that it has in the config, as ``key=value``."""
    key = override.partition("=")[0]
    value = functools.reduce(getattr, key.split("."), composed(override, *others))
    return f"{key}={value}"


def lacking(message: str, keys: list[str]) -> list[str]:
    """Those of ``keys`` that ``message`` does not name; the first must stand at the start of one of its problems."""
    begins = re.search(rf"^(  \d+\. )?{re.escape(keys[0])}", message, re.MULTILINE)
    return [key for key in keys if key not in message or (key == keys[0] and not begins)]
