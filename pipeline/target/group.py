"""Ranks that share one target (``target.tensor_parallel``): the first one leads, the others follow.

The leader works like a single process. Every product of a split target needs all of its ranks, so the leader sends each
call of the target to the followers as an order. While a group exists, it is a ``torch.distributed`` world of its own,
because transformers splits a model over the whole world and groups do not communicate.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from data_specs.errors import UserError
from pipeline import ranks
from pipeline.config import ConfigError, TargetConfig

PATIENCE = timedelta(days=7)  # a follower waits while its leader waits for other groups
LOAD, CALL, DONE, FAILED = "load", "call", "done", "failed"
JOINED = itertools.count()  # gives each group its own keys in the store

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass
class TargetGroup:
    """This process's group: ``size`` ranks, beginning with rank ``first``.

    If a call of all ranks fails, it fails on all of them, or the failed process ends the others. Then no rank waits for
    an order, so none is sent.
    """

    size: int
    first: int
    leads: bool
    depth: int = 0  # how deeply calls are nested; only the outermost call is an order
    broken: bool = False  # a call that all ranks made has failed

    def work(self, lead: Callable[[], Any], load: Callable[[list[int]], Any]) -> Any:
        """Run ``lead`` on the first rank while the others carry out its orders; all ranks return its result.

        ``load`` gets the taps and loads a follower's part of the target. A follower raises ``UserError`` if its leader
        fails.
        """
        if not self.leads:
            return self._follow(load)
        try:
            result = lead()
        except BaseException as error:  # also an exit or Ctrl-C, because the others wait for an order
            if not self.broken:
                self._tell(FAILED, f"{type(error).__name__}: {error}")
            raise
        self._tell(DONE, result)
        return result

    @contextmanager
    def together(self, kind: str, content: Any) -> Iterator[None]:
        """A call that all ranks make: the leader sends it as an order, unless it is part of such a call."""
        if self.leads and not self.depth:
            self._tell(kind, content)
        self.depth += 1
        done = False
        try:
            yield
            done = True
        finally:
            self.broken = self.broken or not done
            self.depth -= 1

    def _follow(self, load: Callable[[list[int]], Any]) -> Any:
        target = None
        while True:
            kind, content = self._hear()
            if kind == LOAD:
                target = load(content)
            elif kind == CALL:
                getattr(target, content[0])(*content[1])
            elif kind == FAILED:
                raise UserError(
                    f"rank {self.first}, which leads this one (rank {ranks.rank()}), failed: {content}"
                )
            else:
                return content

    def _tell(self, kind: str, content: Any) -> None:
        dist.broadcast_object_list([kind, content], src=0, device=torch.device("cpu"))

    def _hear(self) -> list[Any]:
        order: list[Any] = [None, None]
        dist.broadcast_object_list(order, src=0, device=torch.device("cpu"))
        return order


def together(method: Method) -> Method:
    """Mark a method of the target that all ranks of its group must call. The leader's call is an order."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if self.group is None:
            return method(self, *arguments, **named)
        assert not named, f"{method.__name__}: a target on several ranks accepts no caches and masks"
        on_cpu = [x.cpu() if isinstance(x, torch.Tensor) else x for x in arguments]
        with self.group.together(CALL, (method.__name__, on_cpu)):
            return method(self, *arguments)

    return cast(Method, call)


@contextmanager
def join(cfg: TargetConfig, device: torch.device) -> Iterator[TargetGroup]:
    """This rank's group of ``target.tensor_parallel`` neighbouring ranks. All ranks must call this equally often.

    Raises ``ConfigError`` if the ranks cannot be divided into such groups, or if transformers would put the target on
    another device than ``target.device``.
    """
    size = cfg.tensor_parallel
    _check(size, device)
    number, place = divmod(ranks.rank(), size)
    backend = "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:nccl"  # orders go over gloo
    store = dist.PrefixStore(f"target-{next(JOINED)}-{number}", _store())
    dist.init_process_group(backend, store=store, rank=place, world_size=size, timeout=PATIENCE)
    try:
        yield TargetGroup(size, number * size, leads=place == 0)
    finally:
        dist.destroy_process_group()


def _check(size: int, device: torch.device) -> None:
    if size < 1 or ranks.world_size() % size:
        raise ConfigError(
            f"target.tensor_parallel={size}: expected a number that divides the {ranks.world_size()} ranks; "
            "set ranks to a multiple of it"
        )
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    found = accelerator.type if accelerator else "cpu"
    if found != device.type:
        raise ConfigError(
            f"target.device={device.type}: with target.tensor_parallel={size} transformers puts the target on "
            f"{found}, because that is visible; set target.device={found}"
        )


@functools.cache
def _store() -> dist.Store:
    """The store through which ranks find each other. It is kept because rank 0's also serves training."""
    store, _, _ = next(iter(dist.rendezvous("env://")))
    return cast(dist.Store, store)
