"""Model folders that draftline makes once, in its part of the user's cache."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from data_specs.manifest import read_json, write_json
from pipeline.config import ConfigError
from pipeline.console import say
from pipeline.store.work import WorkShare, publish_folder

SOURCE = "source.json"  # says what a converted folder was made from; written last
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENOSPC)


def cache_home() -> Path:
    """The folder of draftline's files in the user's cache (``XDG_CACHE_HOME``, else ``~/.cache``)."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftline"
    except RuntimeError as error:  # the user has no home folder
        raise ConfigError(
            f"the user has no home folder ({error}): set XDG_CACHE_HOME to a writable folder"
        ) from error


def made_once(name: str, origin: Mapping[str, object], what: str, make: Callable[[Path], None]) -> Path:
    """The folder ``name`` in draftline's cache, written by ``make`` in one process while the others wait.

    The screen shows ``what`` meanwhile. Raises ``ConfigError`` if the folder was made from another ``origin``.
    """
    folder = cache_home() / "targets" / name
    source = folder / SOURCE
    with _writable_cache(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        for _ in WorkShare(folder.parent, [name], lambda _: source.is_file()):
            partial = folder.with_name(f".{name}.{socket.gethostname()}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            say(f"target {name}: {what} (once) ...")
            make(partial)
            write_json(partial / SOURCE, origin)
            if not source.is_file():  # without this file the folder is incomplete
                shutil.rmtree(folder, ignore_errors=True)
            publish_folder(partial, folder)
            say(f"target {name}: written to {folder}")
    if read_json(source) != origin:
        raise ConfigError(
            f"target.name={name}: {folder} was made from other files than {origin}; remove this folder"
        )
    return folder


@contextmanager
def _writable_cache(folder: Path) -> Iterator[None]:
    """Raise a ``ConfigError`` with the remedy if the system cannot write below the user's cache."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise ConfigError(
            f"target.package, target.adapter: cannot write a converted target below {folder}: {error.strerror}; "
            "set XDG_CACHE_HOME to a writable folder"
        ) from error
