from data_specs.target_cache import CacheSpec
from stages.cache.forecast import cache_bytes


def test_bytes_grow_with_tokens_taps_and_width() -> None:
    spec = CacheSpec(
        taps=[0, 2], hidden_size=32, vocab_size=272, dtype="bfloat16", chunk_tokens=16, shard_tokens=64
    )
    states = 160 * (2 * 32 + 32) * 2  # tokens x (taps + final state) x bf16
    assert states < cache_bytes([100, 60], spec, segment_tokens=1000) < 1.3 * states + 20_000
    assert cache_bytes([100, 60], spec, 1000) < cache_bytes([100, 60, 60], spec, 1000)
