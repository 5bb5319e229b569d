"""The plan of a target cache: its samples in order, their segments, and the rows left out by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor

from data_specs.files import free_bytes
from data_specs.target_cache import SPLITS, CacheError, CacheSpec, segment_bytes
from pipeline.config import CaptureConfig, Config, ConfigError
from pipeline.console import duration, size, table
from pipeline.states.samples import plan_segments
from stages.cache.forecast import expected_seconds

COLUMNS = ("key", "split", "turn", "prompt_ids", "answer_ids")


@dataclass(frozen=True)
class PlannedSample:
    """A sample to capture: ids int64 [S], loss mask bool [S] (True for answer tokens), key and split."""

    key: str
    split: str
    input_ids: Tensor
    loss_mask: Tensor


@dataclass(frozen=True)
class CapturePlan:
    """The samples of a cache in order, their segments, and the number of rows left out by reason."""

    samples: list[PlannedSample]
    segments: list[list[int]]
    truncated: int
    left_out: dict[str, int]

    def tokens(self, segment: int) -> int:
        """The number of tokens in a segment."""
        return sum(len(self.samples[i].input_ids) for i in self.segments[segment])


def plan_capture(rows: pa.Table, capture: CaptureConfig, vocab_size: int) -> CapturePlan:
    """The samples of the answers ``rows``, sorted by (key, turn) and truncated to ``max_length``, and their segments.

    Rows of the benchmark split, rows without a supervised token after truncation and rows with an id outside the
    target's embedding are left out and counted by reason. Raises ``CacheError`` if no row is left.
    """
    rows = rows.combine_chunks()
    order = sorted(zip(rows["key"].to_pylist(), rows["turn"].to_pylist(), range(len(rows)), strict=True))
    samples: list[PlannedSample] = []
    left_out: Counter[str] = Counter()
    truncated, longest = 0, capture.max_length
    for key, turn, row in order:
        prompt, answer = (rows[name][row].values.to_numpy() for name in ("prompt_ids", "answer_ids"))
        ids = torch.cat([torch.from_numpy(part).long() for part in (prompt.copy(), answer.copy())])
        mask = torch.arange(len(ids)) >= len(prompt)
        split = rows["split"][row].as_py()
        if reason := _reject(split, ids, mask[:longest], vocab_size):
            left_out[reason] += 1
            continue
        truncated += len(ids) > longest
        samples.append(PlannedSample(f"{key}:{turn}", split, ids[:longest], mask[:longest]))
    if not samples:
        raise CacheError(f"there is no sample to cache: {len(rows)} answers read, left out: {dict(left_out)}")
    segments = plan_segments([len(sample.input_ids) for sample in samples], capture.segment_tokens)
    return CapturePlan(samples, segments, truncated, dict(sorted(left_out.items())))


def check_positions(plan: CapturePlan, positions: int | None) -> None:
    """Raise ``ConfigError`` naming the longest sample of ``plan`` if it exceeds the target's ``positions``."""
    longest = max(plan.samples, key=lambda sample: len(sample.input_ids))
    if positions is not None and len(longest.input_ids) > positions:
        raise ConfigError(
            f"capture.max_length: sample {longest.key} has {len(longest.input_ids)} tokens, but the target has "
            f"{positions} positions: set capture.max_length={positions} to cut longer samples"
        )


def plan_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Sort samples by length into batches of at most ``batch_tokens`` with padding; a longer sample is alone."""
    batches: list[list[int]] = []
    for sample in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if not batches or (len(batches[-1]) + 1) * lengths[sample] > batch_tokens:
            batches.append([])
        batches[-1].append(sample)
    return batches


def _reject(split: str, ids: Tensor, mask: Tensor, vocab_size: int) -> str | None:
    """Why a row is not cached, or None. The first token does not count, because nothing predicts it."""
    if split not in SPLITS:
        return f"split {split}"
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        return f"id outside the target's {vocab_size} embedding rows"
    return None if bool(mask[1:].any()) else "no supervised token"


def print_plan(plan: CapturePlan, spec: CacheSpec, root: Path, folder: Path, config: Config) -> None:
    """Print the samples, tokens, bytes and time of a capture."""
    tokens = [plan.tokens(number) for number in range(len(plan.segments))]
    seconds = expected_seconds(sum(tokens), folder, config)
    supervised = sum(int(sample.loss_mask.sum()) for sample in plan.samples)
    rows: list[tuple[str, object]] = [
        ("samples", len(plan.samples)),
        ("left out", ", ".join(f"{number} {reason}" for reason, number in plan.left_out.items()) or "none"),
        ("truncated", plan.truncated),
        ("tokens", sum(tokens)),
        ("supervised tokens", supervised),
        ("segments", len(tokens)),
        ("bytes before compression", size(sum(segment_bytes(spec, count) for count in tokens))),
        ("free disk", size(free_bytes(root))),
        ("expected time (estimate)", f"{duration(seconds)} on one process"),
    ]
    table("Plan: target cache", ("", ""), rows)
