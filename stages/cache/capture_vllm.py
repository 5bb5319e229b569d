"""Gets hidden states from vLLM and applies the final norm and the head to them in this process.

vLLM numbers hidden states as transformers does: 0 is the embedding's output, l is the output of decoder layer l - 1,
and the number of layers L is the state *before* the final norm. It always returns them in ascending order.
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

AHEAD = 1  # batches that vLLM computes while this process reads one
MOST_SEQUENCES = 256  # in one forward pass
MEMORY = 0.85  # share of a GPU's memory that vLLM takes; this process needs the rest for the head
# Our kernel rounds logits differently from vLLM's. Two logits count as equal if they differ by less than this share of
# the largest one.
ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 2e-2}
Batch = Sequence[PlannedSample]


class VllmTarget:
    """The target: vLLM computes the states; this process applies the final norm and the head."""

    def __init__(self, worker: Worker, cfg: TargetConfig, tensors: TargetTensors, taps: list[int]) -> None:
        self.worker, self.config, self.dtype = worker, tensors.config, dtype_of(cfg)
        self.layers, self.columns = numbering(taps, tensors.config.num_hidden_layers)
        self.device = device_of(cfg)
        self.norm = final_norm(cfg, tensors).to(self.device)
        self.head = tensors.head.to(self.device)
        self._asked = 0

    def states(self, batches: Sequence[Batch]) -> Iterator[list[States]]:
        """States of every sample of each batch: hidden [S, m*H], last_hidden [S, H].

        Raises ``CacheError`` naming a sample whose ids, length or dtype differ from the request, or whose final state
        does not predict vLLM's next token; raises ``WorkerError`` if vLLM fails.
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
        """Read the states [S, layers, H] from ``path``; ``CacheError`` if they are not those of the sample."""
        name, ids = f"sample {planned.key}", planned.input_ids
        try:
            found = load_file(path)
        except (OSError, SafetensorError) as error:
            raise CacheError(f"{name}: vLLM wrote no readable file of states to {path}: {error}") from error
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
        """Check norm and layers: the head must choose vLLM's token from the final state [1, H], else ``CacheError``."""
        logits = self.logits(last)[0].float()
        gap = float(logits.max() - logits[following])
        if gap > ROUNDING[self.dtype] * float(
            logits.abs().max()
        ):  # false for NaN, which check_finite reports
            raise CacheError(
                f"sample {planned.key}: vLLM's next token is {following}, but its states give that token a logit "
                f"{gap:.3g} below that of token {int(logits.argmax())}: they are not the target's final states"
            )


@contextmanager
def vllm_target(config: Config, spec: CacheSpec, beside: Path, longest: int) -> Iterator[VllmTarget]:
    """The target in vLLM, for samples of at most ``longest`` tokens; files are exchanged in a folder beside ``beside``.

    Raises ``ConfigError`` if vLLM cannot return this target's states in the form that the cache stores.
    """
    tensors = load_tensors(config.target)
    streams = getattr(tensors.config, "hc_mult", 1)
    if streams > 1:
        raise ConfigError(
            f"capture.source=vllm: {tensors.folder} has {streams} residual streams, and the cache stores their mean; "
            "vLLM does not return it: set capture.source=hf"
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
    """vLLM's numbers of the layers to ask for, ascending, and the position of each of ``taps`` among them.

    The last layer number is the state before the final norm.
    """
    layers = sorted({*(tap + 1 for tap in taps), num_layers})
    return layers, [layers.index(tap + 1) for tap in taps]


def llm_arguments(config: Config, layers: list[int], longest: int) -> dict[str, Any]:
    """Arguments of vllm.LLM; ``ConfigError`` if ``capture.vllm.options`` sets one that draftline decides."""
    target, tokens = config.target, max(config.capture.batch_tokens, longest)
    ours = {
        "model": str(locate(target).absolute()),
        "dtype": target.dtype,
        "tensor_parallel_size": target.tensor_parallel,
        "trust_remote_code": target.trust_remote_code,
        "skip_tokenizer_init": True,
        # vLLM generates one token and keeps states only if one more would fit.
        "max_model_len": longest + 2,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": min(MOST_SEQUENCES, tokens),
        "enable_prefix_caching": False,  # otherwise the states of a shared prefix would be missing
        "speculative_config": {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": layers}},
        },
    }
    options = config.capture.vllm.options
    taken = sorted({*ours, "kv_transfer_config"} & set(options))
    if taken:
        raise ConfigError(
            f"capture.vllm.options.{taken[0]}: remove it; draftline sets it from target and capture"
        )
    room = {"gpu_memory_utilization": MEMORY} if device_of(target).type == "cuda" else {}
    return room | ours | dict(options)


def final_norm(cfg: TargetConfig, tensors: TargetTensors) -> nn.Module:
    """The target's final norm: the class from transformers with the weight [H] from the target's file."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with quiet_transformers(), torch.device("meta"):
        whole = AutoConfig.from_pretrained(tensors.folder, trust_remote_code=cfg.trust_remote_code)
        model: Any = AutoModelForCausalLM.from_config(
            whole, dtype=dtype_of(cfg), trust_remote_code=cfg.trust_remote_code
        )
    norm: Any = getattr(model.get_decoder(), "norm", None)
    if norm is None or [name for name, _ in norm.named_parameters()] != ["weight"]:
        raise ConfigError(
            f"{tensors.folder}: {type(model).__name__} has no final norm whose only parameter is a weight"
        )
    norm.weight = nn.Parameter(tensors.final_norm, requires_grad=False)
    return norm


def _shown(ids: Tensor) -> str:
    return f"{len(ids)} ids {ids.tolist()[:8]}{'...' if len(ids) > 8 else ''}"
