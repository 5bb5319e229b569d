"""States by vLLM's extraction of hidden states; the final norm and the head are applied here.

vLLM numbers hidden states as transformers does: l is the output of decoder layer l - 1, 0 the embedding's, and the
number of layers L the state *before* the final norm. It gives them in ascending order, whatever order was asked for.
Shapes: S tokens of a sample, m taps, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from data_specs.manifest import write_json
from data_specs.target_cache import CacheError, CacheSpec
from pipeline.config import Config, ConfigError, TargetConfig
from pipeline.console import say
from pipeline.ranks import is_main
from pipeline.target.files import device_of, dtype_of, quiet_transformers
from pipeline.target.location import locate
from pipeline.target.model import States, shape_logits
from pipeline.target.tensors import TargetTensors, load_tensors
from stages.cache.plan import PlannedSample
from stages.cache.vllm_process import Worker, environment_of, started

AHEAD = 1  # batches that vLLM has in hand while one is read here
MOST_SEQUENCES = 256  # of one pass
MEMORY = 0.85  # share of a GPU that vLLM takes: the head of this process needs some as well
# Logits by another kernel than vLLM's, of states in bf16: the share of the largest by which two may be confused.
ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 2e-2}
Batch = Sequence[PlannedSample]


class VllmTarget:
    """The target in vLLM, which gives the states, and its final norm and head in this process."""

    def __init__(self, worker: Worker, cfg: TargetConfig, tensors: TargetTensors, taps: list[int]) -> None:
        self.worker, self.config, self.dtype = worker, tensors.config, dtype_of(cfg)
        self.layers, self.columns = numbering(taps, tensors.config.num_hidden_layers)
        self.device = device_of(cfg)
        self.norm = final_norm(cfg, tensors).to(self.device)
        self.head = tensors.head.to(self.device)
        self._asked = 0

    def states(self, batches: Sequence[Batch]) -> Iterator[list[States]]:
        """States of every sample of each batch: hidden [S, m*H], last_hidden [S, H].

        Raises ``CacheError`` naming a sample whose ids, length or type of states is not what was asked for, or whose
        final state does not predict what vLLM does; ``WorkerError`` when vLLM fails.
        """
        waiting: deque[Batch] = deque()
        for batch in batches:
            self._ask(batch)
            waiting.append(batch)
            if len(waiting) > AHEAD:
                yield self._receive(waiting.popleft())
        while waiting:
            yield self._receive(waiting.popleft())

    @torch.no_grad()
    def logits(self, last_hidden: Tensor) -> Tensor:
        """Logits [..., V] of final states [..., H]."""
        return shape_logits(nn.functional.linear(last_hidden.to(self.device), self.head), self.config)

    def _ask(self, batch: Batch) -> None:
        name = f"batch-{self._asked}.json"
        self._asked += 1
        write_json(self.worker.folder / name, [planned.input_ids.tolist() for planned in batch])
        self.worker.tell({"batch": name})

    def _receive(self, batch: Batch) -> list[States]:
        said = self.worker.hear()
        files, following = said.get("files", []), said.get("next", [])
        if len(files) != len(batch) or len(following) != len(batch):
            raise CacheError(f"vLLM: expected states of {len(batch)} samples, got {str(said)[:200]}")
        return [
            self._read(planned, self.worker.folder / Path(name).name, token)
            for planned, name, token in zip(batch, files, following, strict=True)
        ]

    @torch.no_grad()
    def _read(self, planned: PlannedSample, path: Path, following: int) -> States:
        raw = self._checked(planned, path).to(self.device)
        path.unlink()
        last = self.norm(raw[:, -1])
        self._check_prediction(planned, last[-1:], following)
        return States(raw[:, self.columns].flatten(1), last)

    def _checked(self, planned: PlannedSample, path: Path) -> Tensor:
        """The states [S, layers, H] in ``path``, if they are of the sample's ids."""
        name, ids = f"sample {planned.key}", planned.input_ids
        try:
            found = load_file(path)
        except (OSError, SafetensorError) as error:
            raise CacheError(f"{name}: vLLM wrote no whole file of states: {path}: {error}") from error
        got, states = (found.get(key, torch.empty(0)) for key in ("token_ids", "hidden_states"))
        if not torch.equal(got, ids):
            raise CacheError(f"{name}: token_ids: expected {_shown(ids)}, got {_shown(got)} from vLLM")
        expected = (len(ids), len(self.layers), self.config.hidden_size)
        if tuple(states.shape) != expected or states.dtype != self.dtype:
            raise CacheError(
                f"{name}: hidden_states: expected {self.dtype} of the shape {expected}, got {states.dtype} of "
                f"{tuple(states.shape)} from vLLM"
            )
        return states

    def _check_prediction(self, planned: PlannedSample, last: Tensor, following: int) -> None:
        """The head on the final state [1, H] has to choose vLLM's token: so norm and layers are the right ones."""
        logits = self.logits(last)[0].float()
        gap = float(logits.max() - logits[following])
        if gap > ROUNDING[self.dtype] * float(logits.abs().max()):  # never so for NaN, which is named later
            raise CacheError(
                f"sample {planned.key}: vLLM goes on with token {following}, whose logit by its final state is "
                f"{gap:.3g} below that of token {int(logits.argmax())}: these are not the target's final states"
            )


@contextmanager
def vllm_target(config: Config, spec: CacheSpec, beside: Path, longest: int) -> Iterator[VllmTarget]:
    """The target in vLLM, for samples of at most ``longest`` tokens; files are exchanged beside ``beside``.

    Raises ``ConfigError`` for a target that vLLM's extraction does not give as the cache has it.
    """
    tensors = load_tensors(config.target)
    streams = getattr(tensors.config, "hc_mult", 1)
    if streams > 1:
        raise ConfigError(
            f"capture.source=vllm: {tensors.folder} passes on {streams} streams, of which the cache holds the mean; "
            "vLLM does not give it (capture.source=hf does)"
        )
    arguments = llm_arguments(config, numbering(spec.taps, tensors.config.num_hidden_layers)[0], longest)
    if is_main():
        say("target cache: vLLM loads the target ...")
    environment = environment_of(config.target.tensor_parallel)
    with started(config.capture.vllm, beside, environment) as worker:
        worker.tell(arguments)
        target = VllmTarget(worker, config.target, tensors, spec.taps)
        worker.hear()
        yield target


def numbering(taps: Sequence[int], num_layers: int) -> tuple[list[int], list[int]]:
    """vLLM's numbers of the layers to ask for, ascending, and the place among them of each of ``taps``.

    The last of them is the state before the final norm.
    """
    layers = sorted({*(tap + 1 for tap in taps), num_layers})
    return layers, [layers.index(tap + 1) for tap in taps]


def llm_arguments(config: Config, layers: list[int], longest: int) -> dict[str, Any]:
    """Arguments of vllm.LLM; ``ConfigError`` where ``capture.vllm.options`` has one that is decided here."""
    target, tokens = config.target, max(config.capture.batch_tokens, longest)
    ours = {
        "model": str(locate(target).absolute()),
        "dtype": target.dtype,
        "tensor_parallel_size": target.tensor_parallel,
        "trust_remote_code": target.trust_remote_code,
        "skip_tokenizer_init": True,
        # One token is made, and vLLM keeps states only where one more would fit.
        "max_model_len": longest + 2,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": min(MOST_SEQUENCES, tokens),
        "enable_prefix_caching": False,  # states of a shared beginning would be missing
        "speculative_config": {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": layers}},
        },
    }
    options = config.capture.vllm.options
    taken = sorted({*ours, "kv_transfer_config"} & set(options))
    if taken:
        raise ConfigError(f"capture.vllm.options.{taken[0]}: decided by the target and the capture")
    room = {"gpu_memory_utilization": MEMORY} if device_of(target).type == "cuda" else {}
    return room | ours | dict(options)


def final_norm(cfg: TargetConfig, tensors: TargetTensors) -> nn.Module:
    """The target's own final norm, of the class that transformers has for it, with the weight [H] of its file."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with quiet_transformers(), torch.device("meta"):
        whole = AutoConfig.from_pretrained(tensors.folder, trust_remote_code=cfg.trust_remote_code)
        model: Any = AutoModelForCausalLM.from_config(
            whole, dtype=dtype_of(cfg), trust_remote_code=cfg.trust_remote_code
        )
    norm: Any = getattr(model.get_decoder(), "norm", None)
    if norm is None or [name for name, _ in norm.named_parameters()] != ["weight"]:
        raise ConfigError(f"{tensors.folder}: {type(model).__name__} has no final norm with a weight alone")
    norm.weight = nn.Parameter(tensors.final_norm, requires_grad=False)
    return norm


def _shown(ids: Tensor) -> str:
    return f"{len(ids)} ids {ids.tolist()[:8]}{'...' if len(ids) > 8 else ''}"
