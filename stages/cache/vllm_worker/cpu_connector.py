"""vLLM imports this file on a machine without a GPU to write the hidden states that it has kept."""

import os
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    extract_from_kv_cache,
)


class CpuHiddenStates(ExampleHiddenStatesConnector):
    """vLLM's own connector without its copy through pinned memory and CUDA streams."""

    def _submit_async_write(self, pending: Any) -> None:
        """Write the states of a finished request [S, layers, H], then release the file's lock."""
        if not self._is_tp_rank_zero:
            return
        blocks = torch.tensor(pending.block_ids)[:, None] * self._block_size
        slots = (blocks + torch.arange(self._block_size)).flatten()
        states = extract_from_kv_cache(self._kv_cache, slots, len(pending.token_ids))
        save_file({"hidden_states": states.contiguous(), "token_ids": pending.token_ids}, pending.filename)
        lock = self._lock_fds.pop(pending.req_id, None)
        if lock is not None:
            os.close(lock)
        self._req_copy_events[pending.req_id] = SimpleNamespace(query=lambda: True)
