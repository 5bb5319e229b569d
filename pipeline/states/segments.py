"""The segments of a target cache on disk: their records, and checks that they are finished and undamaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from data_specs.manifest import FileRecord, ManifestError, file_record, read_json
from data_specs.target_cache import (
    SEGMENT_RECORD,
    SEGMENTS,
    CacheError,
    SampleRecord,
    SegmentRecord,
    segment_name,
)

HASH_THREADS = 4
SEALED = ("kind", "name", "schema_version", "fingerprint", "parents", "config", "counts")


def read_segment_record(folder: Path, number: int) -> SegmentRecord:
    """``segment.json`` of segment ``number``. Raises ``CacheError`` if it is damaged or another segment's."""
    path = folder / SEGMENTS / segment_name(number) / SEGMENT_RECORD
    value = read_json(path)
    try:
        record = SegmentRecord(
            int(value["number"]),
            [SampleRecord(**sample) for sample in value["samples"]],
            {name: FileRecord(**file) for name, file in value["files"].items()},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CacheError(f"{path}: expected the record of a segment, got: {error!r}") from None
    if record.number != number:
        raise CacheError(f"{path}: expected segment {number}, got segment {record.number}")
    return record


def segment_is_done(folder: Path, number: int) -> bool:
    """Whether segment ``number`` is committed and all its files have the recorded size. Nothing is hashed."""
    path = folder / SEGMENTS / segment_name(number)
    try:
        files = read_segment_record(folder, number).files
    except ManifestError:  # missing or damaged
        return False
    return all((path / name).is_file() and (path / name).stat().st_size == files[name].size for name in files)


def drop_damaged(folder: Path, numbers: Iterable[int]) -> list[str]:
    """Hash the files of segments ``numbers``, remove the segments that have a damaged file, and return the errors."""
    errors = []
    for number in numbers:
        path = folder / SEGMENTS / segment_name(number)
        try:
            check_files(path, read_segment_record(folder, number).files)
        except ManifestError as error:
            errors.append(str(error))
            shutil.rmtree(path, ignore_errors=True)
    return errors


def check_files(
    folder: Path,
    files: dict[str, FileRecord],
    full: Callable[[str], bool] = lambda _: True,
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """Check presence and size of all ``files``, and the SHA-256 of those whose name ``full`` accepts.

    ``advance`` is told the bytes of each hashed file. ``CacheError`` names the first file that differs.
    """
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise CacheError(f"{path}: missing")
        if path.stat().st_size != expected.size:
            raise CacheError(f"{path}: expected {expected.size} bytes, got {path.stat().st_size}")
    names = [name for name in files if full(name)]
    with ThreadPoolExecutor(min(HASH_THREADS, os.cpu_count() or 1)) as pool:
        for name, record in zip(names, pool.map(lambda name: file_record(folder / name), names), strict=True):
            if record != files[name]:
                digests = f"expected sha256 {files[name].sha256[:12]}..., got {record.sha256[:12]}..."
                raise CacheError(f"{folder / name}: damaged: {digests}")
            advance(record.size)
