"""The connector for machines without a GPU, on a stand-in for the class of vLLM that it changes."""

import importlib
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

NAME = "stages.cache.vllm_worker.cpu_connector"
BASE = "vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector"


class Connector:
    """What the worker's connector finds in vLLM's: a cache of three blocks of four slots, two layers, width 3."""

    def __init__(self, first=True):
        self._is_tp_rank_zero, self._block_size = first, 4
        self._kv_cache = torch.arange(72.0).view(3, 4, 2, 3)
        self._lock_fds: dict[str, int] = {}
        self._req_copy_events: dict[str, object] = {}


def extract(cache, slots, tokens):
    """As vLLM's own: rows of the flat cache, without the padding of the last block."""
    return cache.flatten(0, 1)[slots][:tokens]


@pytest.fixture
def connector(monkeypatch):
    """The class ``CpuHiddenStates`` upon ``Connector``."""
    base = ModuleType(BASE)
    base.ExampleHiddenStatesConnector, base.extract_from_kv_cache = Connector, extract  # type: ignore[attr-defined]
    parts = BASE.split(".")
    for n in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:n]), ModuleType(".".join(parts[:n])))
    monkeypatch.setitem(sys.modules, BASE, base)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    yield importlib.import_module(NAME).CpuHiddenStates
    sys.modules.pop(NAME, None)


@pytest.fixture
def pending(tmp_path):
    """Six tokens in blocks 2 and 0."""
    return SimpleNamespace(
        req_id="r", block_ids=[2, 0], token_ids=torch.arange(6), filename=str(tmp_path / "r.safetensors")
    )


def test_the_states_of_a_request_in_the_order_of_its_tokens(connector, pending, tmp_path):
    made = connector()
    made._lock_fds["r"] = os.open(tmp_path / "r.lock", os.O_CREAT)
    lock = made._lock_fds["r"]
    made._submit_async_write(pending)
    found = load_file(pending.filename)
    assert found["token_ids"].tolist() == [0, 1, 2, 3, 4, 5]
    flat = made._kv_cache.flatten(0, 1)
    assert torch.equal(found["hidden_states"], flat[[8, 9, 10, 11, 0, 1]])
    assert found["hidden_states"].shape == (6, 2, 3)
    with pytest.raises(OSError):  # let go of
        os.fstat(lock)
    assert made._lock_fds == {} and made._req_copy_events["r"].query() is True


def test_a_request_without_a_lock_is_written_too(connector, pending):
    made = connector()
    made._submit_async_write(pending)
    assert load_file(pending.filename)["hidden_states"][0, 0].tolist() == [48.0, 49.0, 50.0]


def test_one_rank_writes(connector, pending, tmp_path):
    made = connector(first=False)
    made._submit_async_write(pending)
    assert list(tmp_path.iterdir()) == [] and made._req_copy_events == {}
