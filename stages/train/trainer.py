"""The only module that imports DeepSpeed.

With ``bf16``, every ZeRO stage uses torch autocast and fp32 parameters, which cost little because drafts are small.
DeepSpeed's own bf16 mode would round the frozen embedding and head of an fp32 target and sum micro-batches in bf16, and
its stage 0 takes one step with zero gradients (Adam's first update becomes 0.744 lr).

DeepSpeed's checkpoints are torch pickles. They stay in the run's own folder, only the run that wrote them reads them,
and no artifact contains one.
"""

from __future__ import annotations

import datetime
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline import ranks
from pipeline.config import ConfigError, DeepSpeedConfig, TrainConfig
from pipeline.drafts.base import Draft, LossTerms, LossWeights
from stages.train.batches import Micro

TIMEOUT = datetime.timedelta(minutes=30)  # wait this long for other ranks: rank 0 may hash a large artifact
TAG = "engine"


class _LossModule(nn.Module):
    """The draft with ``loss`` as its ``forward``, which DeepSpeed wraps.

    The output is a plain tuple, because ZeRO-3 gathers parameters by hooks on tensors, for which it searches only
    tuples and lists.
    """

    def __init__(self, draft: Draft) -> None:
        super().__init__()
        self.draft = draft

    def forward(self, micro: Micro, weights: LossWeights, chunk_slots: int) -> tuple[Tensor | None, ...]:
        terms = self.draft.loss(micro.batch, micro.blocks, micro.supervision, weights, chunk_slots)
        return tuple(getattr(terms, field.name) for field in fields(terms))


class Trainer:
    """A draft with its optimizer, for use inside ``process_group``."""

    def __init__(self, draft: Draft, train: TrainConfig, config: DeepSpeedConfig, micro_steps: int) -> None:
        import deepspeed

        self.draft, self.stage, self.micro_steps = draft, config.stage, micro_steps
        self.device, trainable = device(), draft.trainable_parameters()
        self._squares = torch.zeros((), device=self.device)  # squared norms of the backward passes' gradients
        for parameter in trainable:
            parameter.register_hook(self._add_square)
        betas = (train.betas[0], train.betas[1])
        optimizer = torch.optim.AdamW(trainable, train.lr, betas, weight_decay=train.weight_decay)
        self._engine, *_ = deepspeed.initialize(
            model=_LossModule(draft.to(self.device)),
            optimizer=optimizer,
            config=engine_config(train, config, micro_steps, ranks.world_size()),
        )

    def loss(self, micro: Micro, weights: LossWeights, chunk_slots: int) -> LossTerms:
        """The loss terms of one of a step's ``micro_steps`` micro-batches, in the run's precision."""
        self._engine.train()
        return LossTerms(*self._engine(micro, weights, chunk_slots))

    @torch.no_grad()
    def evaluate(self, micro: Micro, weights: LossWeights, chunk_slots: int) -> LossTerms:
        """As ``loss``, but in evaluation mode and without gradients. Every rank calls it equally often."""
        self._engine.eval()
        return LossTerms(*self._engine(micro, weights, chunk_slots))

    def backward(self, total: Tensor, global_weight: float) -> None:
        """Add the gradient of ``total / global_weight``; the latter is the weight of the whole step on all ranks.

        The number of ranks is a factor because DeepSpeed averages over them. It does not divide by the micro-batches.
        """
        self._engine.backward(total * (ranks.world_size() / global_weight), scale_wrt_gas=False)
        if not self._engine.is_gradient_accumulation_boundary():
            self._engine.step()  # counts the micro-batch; nothing is updated yet

    def step(self, lr: float) -> float:
        """Clip the gradient, update the draft with rate ``lr``, and return the global norm before clipping."""
        for group in self._engine.optimizer.param_groups:
            group["lr"] = lr
        if self.stage == 0:  # DeepSpeed reports no norm, but the gradients are whole and already averaged
            gradients = [p.grad for p in self.draft.trainable_parameters() if p.grad is not None]
            norm = float(nn.utils.get_total_norm(gradients))
        self._engine.step()
        return norm if self.stage == 0 else float(self._engine.get_global_grad_norm())

    def take_square(self) -> Tensor:
        """The sum of squared norms of this rank's gradients since the last call; not finite if an entry was not."""
        square, self._squares = self._squares, torch.zeros_like(self._squares)
        return square

    def _add_square(self, gradient: Tensor) -> None:
        self._squares += torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32).square()

    def save(self, folder: Path) -> None:
        """Write this rank's part of a checkpoint, without frozen tensors, into ``folder``. All ranks call it."""
        self._engine.save_checkpoint(str(folder), tag=TAG, save_latest=False, exclude_frozen_parameters=True)

    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote. Raises ``RuntimeError`` if stage or world size were different."""
        # strict=False because frozen tensors are missing; the caller has compared the names of the others.
        path, _ = self._engine.load_checkpoint(str(folder), tag=TAG, load_module_strict=False)
        if path is None:  # at another stage DeepSpeed returns None without raising
            raise RuntimeError(f"{folder}: DeepSpeed did not load this checkpoint")
        if self.stage == 3:
            # Loading leaves parameters whole, and the first step after an evaluation would end with "tracing error".
            self._engine.empty_partition_cache()

    @contextmanager
    def gathered(self) -> Iterator[Draft]:
        """The draft with whole parameters (ZeRO-3 partitions them), for reading. All ranks call it together."""
        import deepspeed

        parameters = list(self.draft.parameters()) if self.stage == 3 else []
        with deepspeed.zero.GatheredParameters(parameters, enabled=self.stage == 3):
            yield self.draft

    def close(self) -> None:
        """Release DeepSpeed's buffers and hooks."""
        self._engine.destroy()


def engine_config(
    train: TrainConfig, config: DeepSpeedConfig, micro_steps: int, world_size: int
) -> dict[str, Any]:
    """DeepSpeed's JSON. Raises ``ConfigError`` for an offload at stage 0, which has none."""
    if config.offload_optimizer and config.stage == 0:
        raise ConfigError("deepspeed.offload_optimizer=true: expected deepspeed.stage above 0, got 0")
    zero: dict[str, Any] = {"stage": config.stage}
    if config.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    made = {
        "train_micro_batch_size_per_gpu": train.micro_batch,
        "gradient_accumulation_steps": micro_steps,
        "train_batch_size": train.micro_batch * micro_steps * world_size,
        "gradient_clipping": train.clip,
        "zero_optimization": zero,
        # FusedAdam and CPUAdam compile C++ for minutes. torch's AdamW needs these two settings.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        # No module is listed as safe for lower precision, so that gradients are summed over ranks in fp32.
        "torch_autocast": {
            "enabled": train.dtype == "bf16",
            "dtype": "bfloat16",
            "lower_precision_safe_modules": [],
        },  # fmt: skip
        "steps_per_print": 2**31,
    }
    return merged(made, config.extra)


def merged(base: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """``base`` with ``extra`` merged into it, level by level."""
    both = dict(base)
    for key, value in extra.items():
        nested = isinstance(value, dict) and isinstance(both.get(key), dict)
        both[key] = merged(both[key], value) if nested else value
    return both


def device() -> torch.device:
    """This rank's GPU, or the CPU if there is no GPU or DS_ACCELERATOR=cpu."""
    if torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR", "cuda") == "cuda":
        return torch.device("cuda", ranks.local_rank())
    return torch.device("cpu")


@contextmanager
def process_group() -> Iterator[None]:
    """Connect the processes of the run, even if there is only one, for the duration of the block.

    DRAFTLINE_DEEPSPEED_LOG=INFO shows DeepSpeed's messages.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    logging.getLogger("compilers").setLevel(logging.WARNING)  # DeepSpeed's import tests a compiler
    import deepspeed

    deepspeed.utils.logger.setLevel(os.environ.get("DRAFTLINE_DEEPSPEED_LOG", "WARNING"))
    # Its C++ would be compiled for a minute without benefit, because gloo does the same on one machine.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")  # DeepSpeed's calls
    with ranks.rendezvous():
        if device().type == "cuda":
            torch.cuda.set_device(device())
        deepspeed.init_distributed(auto_mpi_discovery=False, timeout=TIMEOUT, verbose=False)
        try:
            yield
        finally:
            deepspeed.comm.destroy_process_group()
            deepspeed.comm.comm.cdb = None  # else the next group in this process would be taken for this one


def sum_over_ranks(values: Sequence[Tensor | float]) -> list[float]:
    """Each value summed over all ranks in fp64. All ranks call it with equally many values."""
    where = device()
    total = torch.stack([torch.as_tensor(v, dtype=torch.float64, device=where).detach() for v in values])
    dist.all_reduce(total)
    return total.tolist()


def gather(value: Any) -> list[Any]:
    """The ``value`` of every rank in the order of ranks, on all ranks."""
    values: list[Any] = [None] * ranks.world_size()
    dist.all_gather_object(values, value)
    return values


def from_main(value: Any) -> Any:
    """The ``value`` of rank 0, on all ranks."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def on_main(action: Callable[[], Any]) -> Any:
    """Run ``action`` on rank 0 while the other ranks wait as long as necessary. Only rank 0 gets the result.

    An error is raised on rank 0. Then torchrun ends the other ranks, or they end with ``RuntimeError``.
    """
    if ranks.world_size() == 1:
        return action()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(action) if ranks.is_main() else None
        # There are many short collectives, because a single long one would exceed the group's timeout.
        while (state := from_main(_state(future))) == "running":
            pass
        if future is not None:
            return future.result()
    if state == "failed":
        raise RuntimeError("rank 0 failed; its message says why")
    return None


def _state(future: Future[Any] | None) -> str:
    if future is None:
        return ""
    wait([future], timeout=5)
    if not future.done():
        return "running"
    return "failed" if future.exception() else "done"


def barrier() -> None:
    """Wait until all ranks have called this."""
    dist.barrier()
