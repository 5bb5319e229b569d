"""Writes the target cache, one whole segment at a time."""

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

from data_specs.manifest import folder_records, write_json
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

# Of the arrays with two axes, by CacheSpec.codec.
COMPRESSORS: dict[str, Any] = {
    "zstd": ZstdCodec(level=1),
    "blosc": BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle"),
}


def write_segment(folder: Path, number: int, samples: Sequence[Sample], spec: CacheSpec) -> None:
    """Write ``samples`` as segment ``number`` of the cache in ``folder``. A rename commits the whole segment.

    ``CacheError`` names a sample whose tensors do not fit ``spec``.
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
    records = [SampleRecord(s.key, s.split, len(s.input_ids), int(s.loss_mask.sum())) for s in samples]
    segment = SegmentRecord(number, records, folder_records(partial))
    write_json(partial / SEGMENT_RECORD, asdict(segment))
    publish_folder(partial, final)


def _write_array(group: Any, name: str, array: ArraySpec, spec: CacheSpec, parts: list[Any]) -> None:
    """Write the concatenated rows of ``parts``, one whole shard at a time."""
    tokens = sum(len(part) for part in parts)
    shard = shard_rows(spec, tokens)
    width = () if array.columns is None else (array.columns,)
    # An array with one axis is not sharded, because its chunks would be too small to be worth a request each.
    chunk = shard if array.columns is None else spec.chunk_tokens
    stored = group.create_array(
        name,
        shape=(tokens, *width),
        dtype=array.stored,
        chunks=(chunk, *width),
        shards=None if array.columns is None else (shard, *width),
        compressors=None if array.columns is None else COMPRESSORS.get(spec.codec),
        fill_value=0,
        config={"write_empty_chunks": True},
        attributes={"dtype": array.meaning},
        dimension_names=["token", "feature"][: 1 + len(width)],
    )
    for start, rows in _packed(parts, shard):
        rows = rows.to(TORCH_DTYPES[array.meaning])
        values = (rows.view(torch.uint16) if array.meaning == "bfloat16" else rows).numpy()
        stored[start : start + len(rows)] = values


def _packed(parts: list[Tensor], size: int) -> Iterable[tuple[int, Tensor]]:
    """(first row, rows) of the concatenation of ``parts``, ``size`` rows at a time, which is never built as a whole."""
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
