"""The package vllm of the worker's process in tests: it gives states out of a table, with the fault it is told to have.

Copied to vllm/__init__.py by the tests of capture_vllm.py; imports nothing that takes long.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file


class SamplingParams:
    def __init__(self, **settings: Any) -> None:
        assert settings["max_tokens"] == 1 and settings["temperature"] == 0.0


class LLM:
    def __init__(self, **arguments: Any) -> None:
        self.table = load_file(arguments["table"])
        self.fault, self.batches = arguments.get("fault"), 0
        transfer = arguments["kv_transfer_config"]
        self.folder = Path(transfer["kv_connector_extra_config"]["shared_storage_path"])
        Path(arguments["table"]).with_suffix(".json").write_text(json.dumps(arguments))
        if self.fault == "engine dies":
            self.engine = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
            self.engine.start()
        print("vLLM prints to standard output")
        if self.fault == "refuses":
            raise ValueError("no such architecture")

    def generate(self, prompts: list[dict[str, list[int]]], settings: Any, use_tqdm: bool) -> list[Any]:
        self.batches += 1
        made = [
            self._one(f"{self.batches}-{i}", prompt["prompt_token_ids"]) for i, prompt in enumerate(prompts)
        ]
        return made[1:] if self._has("few") else made

    def _has(self, fault: str) -> bool:
        return self.fault == fault and self.batches == 3

    def _one(self, name: str, ids: list[int]) -> Any:
        if self._has("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._has("engine dies"):
            self.engine.kill()
            time.sleep(600)
        if self._has("hangs"):
            child = subprocess.Popen(["sleep", "600"])
            (self.folder.parent / "child").write_text(str(child.pid))
            time.sleep(600)
        states, following = self.table[str(ids)], int(self.table[f"{ids} next"][0])
        if self._has("short"):
            states = states[:-1]
        if self._has("not finite"):
            states = states.copy()
            states[1, 0, 0] = np.nan
        if self._has("half precision"):
            states = states.astype(np.float16)
        if self._has("another sample"):
            ids = ids[::-1]
        if self._has("another order"):
            states = np.ascontiguousarray(states[:, ::-1])
        path = self.folder / f"{name}.safetensors"
        save_file({"hidden_states": states, "token_ids": np.array(ids)}, path)
        if self._has("half a file"):
            path.write_bytes(path.read_bytes()[:-9])
        output = SimpleNamespace(token_ids=[following])
        return SimpleNamespace(outputs=[output], kv_transfer_params={"hidden_states_path": str(path)})
