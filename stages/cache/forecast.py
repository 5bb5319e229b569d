"""The layout, bytes and expected time of a target cache, before anything is computed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from data_specs.target_cache import CacheSpec, segment_bytes
from pipeline.config import Config
from pipeline.states.samples import plan_segments
from pipeline.target import files as targets

MODEL_SHARE = 0.5  # a whole model reaches this share of the speed of one large matrix product


def spec_of(config: Config, model: Any) -> CacheSpec:
    """The cache's layout for the target's text config ``model``; ``CacheError`` names a bad setting."""
    capture = config.capture
    return CacheSpec(
        taps=targets.resolve_taps(config.target, model.num_hidden_layers),
        hidden_size=model.hidden_size,
        vocab_size=model.vocab_size,
        dtype=str(targets.dtype_of(config.target)).removeprefix("torch."),  # type: ignore[arg-type]
        codec=capture.codec,  # type: ignore[arg-type]
        chunk_tokens=capture.chunk_tokens,
        shard_tokens=capture.shard_tokens,
        logits=capture.logits,  # type: ignore[arg-type]
        top_k=capture.top_k,
    )


def cache_bytes(lengths: Sequence[int], spec: CacheSpec, segment_tokens: int) -> int:
    """Bytes before compression of a cache whose samples have ``lengths`` tokens."""
    segments = plan_segments(lengths, segment_tokens)
    return sum(segment_bytes(spec, sum(lengths[i] for i in segment)) for segment in segments)


def expected_seconds(tokens: float, folder: Path, config: Config) -> float:
    """Seconds for 2 * parameters * tokens operations at half the speed of one large matrix product, measured now."""
    device, dtype = targets.device_of(config.target), targets.dtype_of(config.target)
    left, right = (torch.randn(1024, 1024, device=device, dtype=dtype) for _ in range(2))
    float((left @ right).sum())  # warm-up; converting to float waits for the device
    started = time.perf_counter()
    float((left @ right).sum())
    rate = 2 * 1024**3 / (time.perf_counter() - started)
    return 2 * targets.parameter_count(folder) * tokens / (MODEL_SHARE * rate)
