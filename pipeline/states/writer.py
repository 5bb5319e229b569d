"""Writing the target cache: one segment at a time, whole or not at all."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from torch import Tensor
from zarr.codecs import BloscCodec, ZstdCodec

from data_specs.manifest import (
    folder_records,
    write_json,
)
from data_specs.target_cache import (
    SEGMENT_RECORD,
    SEGMENTS,
    ArraySpec,
    CacheSpec,
    SampleRecord,
    SegmentRecord,
    arrays,
    segment_name,
    shard_rows,
)
from pipeline.states.samples import TORCH_DTYPES, Sample, check_sample, tensor_of
from pipeline.states.shards import check_order
from pipeline.store.work import publish_folder


def write_segment(folder: Path, number: int, samples: Sequence[Sample], spec: CacheSpec) -> None:
    """Write ``samples`` as segment ``number`` of the cache in ``folder``, whole (by rename) or not at all.

    Raises ``CacheError`` naming a sample whose tensors do not fit ``spec``.
    """
    for sample in samples:
        check_sample(sample, spec)
    final = folder / SEGMENTS / segment_name(number)
    partial = final.with_name(f".{final.name}.{socket.gethostname()}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    group = zarr.open_group(partial, mode="w", zarr_format=3)
    offsets = np.cumsum([0] + [len(sample.input_ids) for sample in samples], dtype=np.int64)
    group.create_array("offsets", data=offsets, chunks=offsets.shape, compressors=None)
    for name, array in arrays(spec).items():
        _write_array(group, name, array, spec, [tensor_of(sample, name) for sample in samples])
        if spec.codec == "none":
            check_order(partial / name, array, spec, int(offsets[-1]))
    records = [_record(sample) for sample in samples]
    segment = SegmentRecord(number, records, folder_records(partial))
    write_json(partial / SEGMENT_RECORD, asdict(segment))
    publish_folder(partial, final)


def _record(sample: Sample) -> SampleRecord:
    return SampleRecord(sample.key, sample.split, len(sample.input_ids), int(sample.loss_mask.sum()))


def _write_array(group: Any, name: str, array: ArraySpec, spec: CacheSpec, parts: list[Any]) -> None:
    """Write the rows of ``parts`` packed along the first axis, one whole shard at a time."""
    tokens = sum(len(part) for part in parts)
    shard = shard_rows(spec, tokens)
    width = () if array.columns is None else (array.columns,)
    # A narrow array is not cut further: its chunks would be too small to be worth a request each.
    chunk = shard if array.columns is None else spec.chunk_tokens
    stored = group.create_array(
        name,
        shape=(tokens, *width),
        dtype=array.stored,
        chunks=(chunk, *width),
        shards=None if array.columns is None else (shard, *width),
        compressors=None if array.columns is None else _codec(spec),
        fill_value=0,
        config={"write_empty_chunks": True},
        attributes={"dtype": array.meaning},
        dimension_names=["token", "feature"][: 1 + len(width)],
    )
    for start, rows in _packed(parts, shard):
        stored[start : start + len(rows)] = _to_numpy(rows, array)


def _packed(parts: list[Tensor], size: int) -> Iterable[tuple[int, Tensor]]:
    """(first row, rows) of the concatenation of ``parts``, ``size`` rows at a time, never held whole."""
    start, held, waiting = 0, 0, []
    for part in parts:
        while len(part):
            piece, part = part[: size - held], part[size - held :]
            waiting.append(piece)
            held += len(piece)
            if held == size:
                yield start, torch.cat(waiting)
                start, held, waiting = start + size, 0, []
    if waiting:
        yield start, torch.cat(waiting)


def _codec(spec: CacheSpec) -> Any:
    """The Zarr codec of the wide arrays."""
    if spec.codec == "zstd":
        return ZstdCodec(level=1)
    if spec.codec == "blosc":
        return BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle")
    return None


def _to_numpy(rows: Tensor, array: ArraySpec) -> Any:
    rows = rows.to(TORCH_DTYPES[array.meaning])
    return (rows.view(torch.uint16) if array.meaning == "bfloat16" else rows).numpy()
