"""The target cache: the states that the frozen target computed for every sample, as sharded Zarr v3.

    manifest.json          of the artifact (data_specs/manifest.py); lists the SHA-256 of every file below
    cache.json             the layout (``CacheSpec``), and a copy of what the manifest says about the contents
    index.parquet          one row per sample, in cache order: key, split, length, supervised, segment
    token_counts.parquet   id, count: how often each token id that occurs at all occurs in the samples
    segments/00000/        a Zarr v3 group of whole samples, written by one process and never changed
        segment.json       number, its samples, and size and SHA-256 of every file of the group
        hidden             [N, m*H]  outputs of the m tapped layers side by side, in the order of ``taps``
        last_hidden        [N, H]    after the target's final norm; the head turns it into the target's logits
        input_ids          [N]       int32
        loss_mask          [N]       bool: the target generated this token
        offsets            [n + 1]   int64: sample i holds the tokens offsets[i] ... offsets[i + 1] - 1
        logits_ids, logits_values, logits_lse    [N, K], [N, K], [N]    with logits: topk (log-sum-exp: fp32)
        logits_full        [N, V]    with logits: full

The N tokens of the n samples in a segment are packed along the first axis. numpy has no bfloat16, so the bits of bf16
arrays are stored as uint16, and their attribute ``dtype`` says ``bfloat16``. Every chunk is written, even one of zeros,
so that a missing chunk is always damage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from data_specs.manifest import FileRecord, ManifestError

SCHEMA_VERSION = 1
SEGMENTS = "segments"
SEGMENT_RECORD = "segment.json"
CACHE_RECORD = "cache.json"
INDEX = "index.parquet"
TOKEN_COUNTS = "token_counts.parquet"
SPLITS = ("train", "heldout")
CODECS = ("none", "zstd", "blosc")
LOGITS = ("none", "topk", "full")
ITEM_BYTES = {"bfloat16": 2, "float32": 4}

INDEX_SCHEMA = pa.schema(
    [pa.field(name, pa.string(), nullable=False) for name in ("key", "split")]
    + [pa.field(name, pa.int32(), nullable=False) for name in ("length", "supervised", "segment")]
)
TOKEN_COUNTS_SCHEMA = pa.schema(
    [pa.field("id", pa.int32(), nullable=False), pa.field("count", pa.int64(), nullable=False)]
)


class CacheError(ManifestError):
    """A cache is damaged, or data must not enter it; the message names the file or the sample."""


@dataclass(frozen=True)
class CacheSpec:
    """The layout of a cache. ``taps`` are the tapped decoder layers (-1: embedding), in the order of columns."""

    taps: list[int]
    hidden_size: int
    vocab_size: int
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    codec: Literal["none", "zstd", "blosc"] = "none"
    chunk_tokens: int = 128  # the smallest amount that a read fetches
    shard_tokens: int = 16384  # tokens of one file at most
    logits: Literal["none", "topk", "full"] = "none"
    top_k: int = 64

    def __post_init__(self) -> None:
        for name, allowed in (("dtype", tuple(ITEM_BYTES)), ("codec", CODECS), ("logits", LOGITS)):
            if getattr(self, name) not in allowed:
                raise CacheError(f"{name}: expected one of {allowed}, got {getattr(self, name)!r}")
        if self.chunk_tokens < 1:
            raise CacheError(f"chunk_tokens: expected at least 1, got {self.chunk_tokens}")
        if self.shard_tokens < 1 or self.shard_tokens % self.chunk_tokens:
            raise CacheError(
                f"shard_tokens={self.shard_tokens}: expected a multiple of chunk_tokens={self.chunk_tokens}"
            )
        if self.logits == "topk" and not 1 <= self.top_k <= self.vocab_size:
            raise CacheError(f"top_k: expected 1 to {self.vocab_size} (the vocabulary), got {self.top_k}")

    def columns(self, tap: int) -> slice:
        """The columns of ``hidden`` with layer ``tap``. Raises ``CacheError`` if that layer was not tapped."""
        if tap not in self.taps:
            raise CacheError(f"layer {tap} was not tapped: the cache holds the layers {self.taps}")
        slot = self.taps.index(tap)
        return slice(slot * self.hidden_size, (slot + 1) * self.hidden_size)


@dataclass(frozen=True)
class ArraySpec:
    """One Zarr array of a segment. ``columns`` is None if the array has one axis."""

    columns: int | None
    stored: str  # numpy dtype
    meaning: str  # "bfloat16" where ``stored`` holds its bits, else as ``stored``

    @property
    def token_bytes(self) -> int:
        """Bytes of one token, uncompressed."""
        return (self.columns or 1) * {"uint16": 2, "float32": 4, "int32": 4, "bool": 1}[self.stored]


@dataclass(frozen=True)
class SampleRecord:
    """One sample in ``segment.json`` and the index; ``supervised`` counts its answer tokens."""

    key: str
    split: str
    length: int
    supervised: int


@dataclass(frozen=True)
class SegmentRecord:
    """Contents of ``segment.json``: the commit record of one segment."""

    number: int
    samples: list[SampleRecord]
    files: dict[str, FileRecord]  # path inside the segment -> size and SHA-256


def segment_name(number: int) -> str:
    """Folder of segment ``number``: ``00000``, ``00001``, ..."""
    return f"{number:05d}"


def arrays(spec: CacheSpec) -> dict[str, ArraySpec]:
    """The arrays of a segment with one row per token, by name: all except ``offsets``."""
    stored = {"bfloat16": "uint16", "float32": "float32"}[spec.dtype]

    def states(columns: int) -> ArraySpec:
        return ArraySpec(columns, stored, spec.dtype)

    found = {
        "hidden": states(len(spec.taps) * spec.hidden_size),
        "last_hidden": states(spec.hidden_size),
        "input_ids": ArraySpec(None, "int32", "int32"),
        "loss_mask": ArraySpec(None, "bool", "bool"),
    }
    if spec.logits == "topk":
        found["logits_ids"] = ArraySpec(spec.top_k, "int32", "int32")
        found["logits_values"] = states(spec.top_k)
        found["logits_lse"] = ArraySpec(None, "float32", "float32")
    if spec.logits == "full":
        found["logits_full"] = states(spec.vocab_size)
    return found


def shard_rows(spec: CacheSpec, tokens: int) -> int:
    """Rows per shard in a segment of ``tokens`` tokens; a small segment is one shard of whole chunks."""
    return min(spec.shard_tokens, -(-tokens // spec.chunk_tokens) * spec.chunk_tokens)


def segment_bytes(spec: CacheSpec, tokens: int) -> int:
    """Bytes of the arrays of a segment of ``tokens`` tokens before compression; the last chunk is padded."""
    padded = -(-tokens // spec.chunk_tokens) * spec.chunk_tokens
    return padded * sum(array.token_bytes for array in arrays(spec).values())
