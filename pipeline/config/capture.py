"""The group ``capture``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from pipeline.config.rules import Count, at_least, one_of


@dataclass
class VllmConfig:
    """vLLM in an environment of its own, for ``capture.source=vllm``."""

    python: str | None = None  # the interpreter of that environment; None: this one
    # longest silence in seconds, also while vLLM loads the target
    timeout: Annotated[float, at_least(1)] = 1800.0
    options: dict[str, Any] = field(default_factory=dict)  # of vllm.LLM, such as gpu_memory_utilization


@dataclass
class CaptureConfig:
    """The target cache: what computes the states, what is stored, and how it is cut."""

    source: Annotated[str, one_of("hf", "vllm")] = "hf"  # hf: the target in this process
    vllm: VllmConfig = field(default_factory=VllmConfig)
    # tokens of a sample; longer samples are cut, and those without a supervised token are left out
    max_length: Annotated[int, at_least(2)] = 4096
    batch_tokens: Count = 8192  # padded tokens of one forward pass
    segment_tokens: Count = 65536  # tokens of a unit of work, which ranks share and a rerun skips
    chunk_tokens: Count = 128
    shard_tokens: Count = 16384  # a multiple of chunk_tokens
    codec: Annotated[str, one_of("none", "zstd", "blosc")] = "none"
    logits: Annotated[str, one_of("none", "topk", "full")] = "none"
    top_k: Count = 64

    def contradictions(self) -> Iterator[str]:
        """Yield a message for each contradiction in ``capture``."""
        if self.shard_tokens % self.chunk_tokens:
            yield (
                f"capture.shard_tokens={self.shard_tokens}: expected a multiple of capture.chunk_tokens="
                f"{self.chunk_tokens}"
            )
