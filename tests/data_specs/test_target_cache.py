import subprocess
import sys

import pytest
from tiny_errors import refused

from data_specs.target_cache import ArraySpec, CacheError, CacheSpec, arrays, segment_bytes, segment_name

SPEC = CacheSpec(taps=[1, 9, 17], hidden_size=8, vocab_size=100, chunk_tokens=4, shard_tokens=16)


def test_arrays_of_a_cache_without_logits() -> None:
    assert arrays(SPEC) == {
        "hidden": ArraySpec(24, "uint16", "bfloat16"),
        "last_hidden": ArraySpec(8, "uint16", "bfloat16"),
        "input_ids": ArraySpec(None, "int32", "int32"),
        "loss_mask": ArraySpec(None, "bool", "bool"),
    }


def test_arrays_of_logits() -> None:
    topk = CacheSpec([0], 8, 100, dtype="float32", logits="topk", top_k=5)
    assert arrays(topk)["logits_ids"] == ArraySpec(5, "int32", "int32")
    assert arrays(topk)["logits_values"] == ArraySpec(5, "float32", "float32")
    assert arrays(topk)["logits_lse"] == ArraySpec(None, "float32", "float32")
    full = CacheSpec([0], 8, 100, logits="full")
    assert arrays(full)["logits_full"] == ArraySpec(100, "uint16", "bfloat16")


def test_bytes_of_a_segment_count_the_padding_of_the_last_chunk() -> None:
    # One token: hidden 24 * 2 + last_hidden 8 * 2 + input_ids 4 + loss_mask 1 = 69 bytes.
    # 5 tokens fill 2 chunks of 4.
    assert segment_bytes(SPEC, 8) == 8 * 69
    assert segment_bytes(SPEC, 5) == 8 * 69


def test_slots_are_found_by_layer() -> None:
    """Pitfall 16: readers go by name."""
    assert SPEC.columns(9) == slice(8, 16)
    with refused(CacheError, 2, "[1, 9, 17]"):
        SPEC.columns(2)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"dtype": "float16"}, ["dtype", "'float16'"]),  # overflows: Gemma's states reach 98304
        ({"codec": "gzip"}, ["codec", "'gzip'"]),
        ({"logits": "some"}, ["logits", "'some'"]),
        ({"chunk_tokens": 0}, ["chunk_tokens", 0]),
        ({"chunk_tokens": 3}, ["shard_tokens=16", "chunk_tokens=3"]),
        ({"logits": "topk", "top_k": 101}, ["top_k", 1, 100, 101]),
    ],
)
def test_layouts_that_make_no_sense_are_named(changes: dict, named: list) -> None:
    values = {"taps": [0], "hidden_size": 8, "vocab_size": 100, "chunk_tokens": 4, "shard_tokens": 16}
    with refused(CacheError, *named):
        CacheSpec(**(values | changes))


def test_names_of_segments_sort_as_their_numbers() -> None:
    assert [segment_name(number) for number in (0, 12, 99999)] == ["00000", "00012", "99999"]


def test_the_format_needs_neither_torch_nor_hydra() -> None:
    code = "import sys, data_specs.target_cache; sys.exit(any(m in sys.modules for m in ('torch', 'hydra')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
