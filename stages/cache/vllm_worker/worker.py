"""Runs in vLLM's own environment: states of the target for stages/cache/vllm_process.py, which starts it.

    python worker.py FOLDER         with vLLM and what it brings; nothing of draftline

Standard input and output carry one JSON object a line; what vLLM prints goes to standard error.

    in   {...}                                       arguments of vllm.LLM, once
    out  {"ready": true}                             the target is loaded
    in   {"batch": NAME}                             a JSON file in FOLDER: one list of token ids a sample
    out  {"files": [NAME, ...], "next": [ID, ...]}   a file in FOLDER and the greedily chosen next token, a sample
    in   {"end": true}

A file is safetensors as vLLM writes it: ``hidden_states`` [S, layers, H], layers in ascending order, and ``token_ids``
int64 [S]. It is whole when it is named. Where standard input ends without "end", whoever started this is gone: the
folder is removed, and the worker ends with all that it started.
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
    """Load the target and answer batches until the end."""
    folder = Path(sys.argv[1])
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints to both
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
    """End with the first of vLLM's processes: its client would wait for ever for an engine that was killed."""
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
    if os.getpgrp() == os.getpid():  # vLLM's engine and workers too
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
    """The name of a file of states, once vLLM has let go of its lock: it writes after it has answered."""
    lock = Path(f"{path}.lock")
    if lock.exists():
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_SH)
        lock.unlink()
    return path.name


if __name__ == "__main__":  # vLLM starts processes that import this file
    main()
