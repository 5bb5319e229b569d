import pytest
from composing import accepted, lacking, out_of_range, refusal

from pipeline.config import CaptureConfig, section


def test_defaults():
    assert section(CaptureConfig()) == {
        "source": "hf", "vllm": {"python": None, "timeout": 1800.0, "options": {}}, "max_length": 4096,
        "batch_tokens": 8192, "segment_tokens": 65536, "chunk_tokens": 128, "shard_tokens": 16384,
        "codec": "none", "logits": "none", "top_k": 64,
    }  # fmt: skip


@pytest.mark.parametrize(
    "override",
    [
        "capture.source=sglang",
        "capture.vllm.timeout=0.5",
        "capture.max_length=1",
        "capture.batch_tokens=0",
        "capture.segment_tokens=0",
        "capture.chunk_tokens=0",
        "capture.shard_tokens=0",
        "capture.codec=gzip",
        "capture.logits=all",
        "capture.top_k=0",
    ],
)
def test_a_value_out_of_its_range_is_named(override: str):
    assert out_of_range(override) == override


@pytest.mark.parametrize(
    "override",
    [
        "capture.source=vllm",
        "capture.vllm.timeout=1.0",
        "capture.max_length=2",
        "capture.chunk_tokens=1",
        "capture.shard_tokens=128",
        "capture.codec=blosc",
        "capture.logits=full",
        "capture.top_k=1",
    ],
)
def test_the_ends_of_a_range_are_in_it(override: str):
    assert accepted(override) == override


@pytest.mark.parametrize("tokens", [100, 192])
def test_a_shard_is_made_of_whole_chunks(tokens: int):
    named = [f"capture.shard_tokens={tokens}", "capture.chunk_tokens=128"]
    assert lacking(refusal(f"capture.shard_tokens={tokens}"), named) == []
