"""Files and folders that survive a power cut: synced before they get their name, and the name synced after."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until the file's contents, or the folder's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def rename_synced(source: Path, target: Path) -> None:
    """Rename ``source`` (a file, or a folder with all below it) to ``target``, so that both survive a power cut.

    Raises ``OSError`` when ``target`` is a folder that is not empty.
    """
    for path in [*source.rglob("*"), source]:
        sync(path)
    os.replace(source, target)
    sync(target.parent)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """The temporary name to write to within the block; at its end ``path`` is the whole new file.

    If the block fails, ``path`` stays as it was. ``Store.commit`` removes what a killed process leaves behind.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        rename_synced(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
