"""Computes the target's states in vLLM's own environment; stages/cache/vllm_process.py starts this script.

    python worker.py FOLDER         needs vLLM and its dependencies, but not draftline

Standard input and output carry one JSON object per line; vLLM's own output goes to standard error.

    in   {...}                                       arguments of vllm.LLM, once
    out  {"ready": true}                             the target is loaded
    in   {"batch": NAME}                             a JSON file in FOLDER with one list of token ids per sample
    out  {"files": [NAME, ...], "next": [ID, ...]}   for each sample, a file in FOLDER and the greedy next token
    in   {"end": true}

Each file is safetensors as vLLM writes it: ``hidden_states`` [S, layers, H], layers in ascending order, and
``token_ids`` int64 [S]. A file is complete when the worker names it. If standard input closes without "end", the
parent process is gone: the worker removes the folder and ends together with all processes that it started.
"""

import fcntl
import json
import multiprocessing
import multiprocessing.connection
import os
import queue
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

Lines = queue.Queue[dict[str, Any]]


def main() -> None:
    """Load the target and answer batches until "end" arrives."""
    folder = Path(sys.argv[1])
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints to both, and standard output is for JSON only
    lines: Lines = queue.Queue()
    threading.Thread(target=_listen, args=(lines, folder), daemon=True).start()

    def tell(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    llm, ends = _load(lines.get(), folder), threading.Event()
    threading.Thread(target=_watch, args=(ends,), daemon=True).start()
    tell({"ready": True})
    while "batch" in (asked := lines.get()):
        tell(_answer(llm, json.loads((folder / asked["batch"]).read_text())))
    ends.set()


def _watch(ends: threading.Event) -> None:
    """Exit when one of vLLM's processes ends, because its client would wait for a killed engine forever."""
    children = multiprocessing.active_children()
    if (
        children
        and multiprocessing.connection.wait([child.sentinel for child in children])
        and not ends.is_set()
    ):
        print("a process of vLLM has ended", file=sys.stderr, flush=True)
        os._exit(1)


def _listen(lines: Lines, folder: Path) -> None:
    for line in sys.stdin:
        lines.put(message := json.loads(line))
        if "end" in message:
            return
    shutil.rmtree(folder, ignore_errors=True)
    if os.getpgrp() == os.getpid():  # this ends vLLM's engine and workers too
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _load(arguments: dict[str, Any], folder: Path) -> Any:
    from vllm import LLM
    from vllm.platforms import current_platform

    connector = {"kv_connector": "ExampleHiddenStatesConnector"}
    if current_platform.is_cpu():
        connector = {"kv_connector": "CpuHiddenStates", "kv_connector_module_path": "cpu_connector"}
    extra = {"kv_role": "kv_producer", "kv_connector_extra_config": {"shared_storage_path": str(folder)}}
    return LLM(**arguments, kv_transfer_config=connector | extra)


def _answer(llm: Any, samples: list[list[int]]) -> dict[str, Any]:
    from vllm import SamplingParams

    one = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False)
    made = llm.generate([{"prompt_token_ids": ids} for ids in samples], one, use_tqdm=False)
    files = [_whole(Path(output.kv_transfer_params["hidden_states_path"])) for output in made]
    return {"files": files, "next": [output.outputs[0].token_ids[0] for output in made]}


def _whole(path: Path) -> str:
    """Wait until vLLM has released the file's lock, as it writes after it has answered; return the file's name."""
    lock = Path(f"{path}.lock")
    if lock.exists():
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_SH)
        lock.unlink()
    return path.name


if __name__ == "__main__":  # vLLM starts processes that import this file again
    main()
