"""Files and folders that survive a power cut: their contents are synced before the rename, and their name after."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def free_bytes(folder: Path) -> int:
    """Free bytes of the disk that holds, or will hold, ``folder``."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def sync(path: Path) -> None:
    """Wait until the contents of a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def rename_synced(source: Path, target: Path) -> None:
    """Rename ``source``, a file or a whole folder, to ``target``, so that contents and name survive a power cut.

    Raises ``OSError`` when ``target`` is a folder that is not empty.
    """
    for path in [*source.rglob("*"), source]:
        sync(path)
    os.replace(source, target)
    sync(target.parent)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write to. At the end of the block, ``path`` is the whole new file.

    If the block fails, ``path`` is unchanged. ``Store.commit`` removes the file that a killed process leaves behind.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        rename_synced(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
