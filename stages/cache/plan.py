"""The plan of a target cache: its samples in order, their segments, and what is left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor

from data_specs.target_cache import SPLITS, CacheError, CacheSpec, segment_bytes
from pipeline.config import CaptureConfig, Config, ConfigError
from pipeline.console import duration, size, table
from pipeline.states.samples import plan_segments
from stages.cache.forecast import expected_seconds, free_bytes

COLUMNS = ("key", "split", "turn", "prompt_ids", "answer_ids")


@dataclass(frozen=True)
class PlannedSample:
    """A sample to be captured: ids int64 [S], mask bool [S] (True: an answer token), and its names."""

    key: str
    split: str
    input_ids: Tensor
    loss_mask: Tensor


@dataclass(frozen=True)
class CapturePlan:
    """What a cache will hold: the samples in cache order, their segments, and what was left out and why."""

    samples: list[PlannedSample]
    segments: list[list[int]]
    truncated: int
    left_out: dict[str, int]

    def tokens(self, segment: int) -> int:
        """Tokens of one segment."""
        return sum(len(self.samples[i].input_ids) for i in self.segments[segment])


def plan_capture(rows: pa.Table, capture: CaptureConfig, vocab_size: int) -> CapturePlan:
    """Samples of the answers ``rows`` by (key, turn), truncated to ``max_length``, and their segments.

    Left out, and counted by reason: rows of the benchmark split, rows without a supervised token after the
    truncation, rows with an id that the target's embedding does not have. Raises ``CacheError`` if no row is left.
    """
    rows = rows.combine_chunks()
    order = sorted(zip(rows["key"].to_pylist(), rows["turn"].to_pylist(), range(len(rows)), strict=True))
    samples: list[PlannedSample] = []
    left_out: Counter[str] = Counter()
    truncated = 0
    for key, turn, row in order:
        prompt, answer = (rows[name][row].values.to_numpy() for name in ("prompt_ids", "answer_ids"))
        ids = torch.cat([torch.from_numpy(part).long() for part in (prompt.copy(), answer.copy())])
        mask = torch.arange(len(ids)) >= len(prompt)
        split = rows["split"][row].as_py()
        reason = _reject(split, ids, mask[: capture.max_length], vocab_size)
        if reason:
            left_out[reason] += 1
            continue
        truncated += len(ids) > capture.max_length
        samples.append(
            PlannedSample(f"{key}:{turn}", split, ids[: capture.max_length], mask[: capture.max_length])
        )
    if not samples:
        raise CacheError(f"no sample to cache: {len(rows)} answers read, left out: {dict(left_out)}")
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
    """Samples by length, cut into batches of at most ``batch_tokens`` with padding (a longer one alone)."""
    batches: list[list[int]] = []
    for sample in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if not batches or (len(batches[-1]) + 1) * lengths[sample] > batch_tokens:
            batches.append([])
        batches[-1].append(sample)
    return batches


def _reject(split: str, ids: Tensor, mask: Tensor, vocab_size: int) -> str | None:
    """Why a row is not cached, or None. The first token is nobody's label."""
    if split not in SPLITS:
        return f"split {split}"
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        return f"id outside the target's {vocab_size} embedding rows"
    return None if bool(mask[1:].any()) else "no supervised token"


def print_plan(plan: CapturePlan, spec: CacheSpec, root: Path, folder: Path, config: Config) -> None:
    """Show what a capture would make: samples, tokens, bytes and time."""
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
