"""Refuses keys that the config does not have, and suggests the key that was probably meant."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from pipeline.config.rules import ConfigError

RENAMED = {
    "answers.engine": "answers.source",
    "capture.engine": "capture.source",
    "profile": "evaluate.profile",
}


def refuse_unknown(cfg: DictConfig, root: type) -> None:
    """Raise ``ConfigError`` that names a key of ``cfg`` that is not in the schema ``root`` (``+x=1`` adds one)."""
    _refuse(OmegaConf.to_container(cfg), root, "", root)


def _refuse(values: Any, hint: Any, key: str, root: type) -> None:
    """Refuse unknown keys in ``values``, which are at ``key`` and have the type ``hint``."""
    if dataclasses.is_dataclass(hint) and isinstance(values, dict):
        hints = get_type_hints(hint)
        for name, value in values.items():
            inner = f"{key}.{name}" if key else str(name)
            if name not in hints:
                raise ConfigError(unknown(inner, root))
            _refuse(value, hints[name], inner, root)
    elif get_origin(hint) is list and isinstance(values, list):
        for number, value in enumerate(values):
            _refuse(value, get_args(hint)[0], f"{key}[{number}]", root)
    elif get_origin(hint) is dict and isinstance(values, dict):
        for name, value in values.items():
            _refuse(value, get_args(hint)[1], f"{key}.{name}", root)


def unknown(key: str, root: type) -> str:
    """The message about ``key``, which the schema ``root`` does not have: its new name, or the nearest key."""
    if key in RENAMED:
        return f"{key} is now {RENAMED[key]}"
    hints = {
        prefix + name: hint for prefix, kind in _sections(root) for name, hint in get_type_hints(kind).items()
    }
    if any(get_origin(hint) is dict and key.startswith(f"{other}.") for other, hint in hints.items()):
        return f"{key}: expected +{key}=... for a key that is not there yet"
    known = list(hints)
    # Only the group may be missing, as in lr for train.lr.
    same = [other for other in known if other.rpartition(".")[2] == key.rpartition(".")[2]]
    near = same if len(same) == 1 else difflib.get_close_matches(key, known, n=1)
    return f"{key}: there is no such key" + (f"; did you mean {near[0]}?" if near else "")


def explained(error: Exception, root: type) -> str:
    """``error``, which Hydra raised while it composed the config, as a message that names the key."""
    cause: BaseException | None = None if isinstance(error, ConfigError) else error
    while cause is not None and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__ or cause.__context__
    if cause is None or not cause.full_key:
        return str(error)
    # Inside of a list the full key is only the field's name, and inside of a file of a group the group is left out.
    place = next((prefix for prefix, kind in _sections(root) if kind is cause.object_type), "")
    key = cause.full_key if cause.full_key.startswith(place) else place + cause.full_key
    file = re.match("In '[^']+': ", str(error))
    is_unknown = isinstance(cause, ConfigKeyError | ConfigAttributeError)
    told = unknown(key, root) if is_unknown else f"{key}: {str(cause).splitlines()[0]}"
    return (file[0] if file else "") + told


def _sections(kind: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(prefix of its keys, dataclass) of ``kind`` and of every dataclass in it, also in lists and dicts."""
    yield prefix, kind
    for name, hint in get_type_hints(kind).items():
        mark = {list: "[]", dict: ".*"}.get(get_origin(hint) or hint, "")
        inner = get_args(hint)[-1] if mark else hint
        if dataclasses.is_dataclass(inner):
            yield from _sections(inner, f"{prefix}{name}{mark}.")
