"""Ranks that hold one target together (``target.tensor_parallel``): the first one leads, the others follow.

The leader works as a single process would. What it asks of the target reaches the followers as orders, because every
product of a target that is split needs all of its ranks. A group is a ``torch.distributed`` world of its own while it
lasts: transformers splits a model over the whole world, and groups have nothing to say to each other.
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

PATIENCE = timedelta(days=7)  # followers wait while their leader waits for other groups
LOAD, CALL, DONE, FAILED = "load", "call", "done", "failed"
JOINED = itertools.count()  # keeps the keys of one group in the store apart from those of the next

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass
class TargetGroup:
    """This process's group: ``size`` ranks from rank ``first`` on.

    What fails while all ranks do the same thing fails on all of them, or ends the others with the process that failed:
    nobody waits for an order then, so none is sent.
    """

    size: int
    first: int
    leads: bool
    depth: int = 0  # calls that this one is a part of; only the outermost is an order
    broken: bool = False  # something failed that all ranks did

    def work(self, lead: Callable[[], Any], load: Callable[[list[int]], Any]) -> Any:
        """Run ``lead`` on the first rank while the others carry out its orders; its result, on all of them.

        ``load`` (given the taps) loads a follower's part of the target. A follower raises ``UserError`` when its
        leader failed.
        """
        if not self.leads:
            return self._follow(load)
        try:
            result = lead()
        except (
            BaseException
        ) as error:  # also an exit or Ctrl-C: the others wait for an order, whatever ended this one
            if not self.broken:
                self._tell(FAILED, f"{type(error).__name__}: {error}")
            raise
        self._tell(DONE, result)
        return result

    @contextmanager
    def together(self, kind: str, content: Any) -> Iterator[None]:
        """What all ranks do: the leader orders it, unless it is a part of such a thing already."""
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
    """A method of the target that all ranks of its group have to call: on the leader it makes the others call it."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if self.group is None:
            return method(self, *arguments, **named)
        assert not named, f"{method.__name__}: a target of several ranks takes no caches and masks"
        with self.group.together(CALL, (method.__name__, [_on_cpu(argument) for argument in arguments])):
            return method(self, *arguments)

    return cast(Method, call)


@contextmanager
def join(cfg: TargetConfig, device: torch.device) -> Iterator[TargetGroup]:
    """The group of this rank, ``target.tensor_parallel`` neighbours; all ranks have to come here equally often.

    Raises ``ConfigError`` when the ranks cannot be divided into such groups, or the target is not to run where
    transformers would put it.
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
            f"target.tensor_parallel={size}: expected a number that divides the ranks, got {ranks.world_size()} of "
            f"them; set ranks to a multiple of it"
        )
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    found = accelerator.type if accelerator else "cpu"
    if found != device.type:
        raise ConfigError(
            f"target.device={device.type}: with target.tensor_parallel={size} transformers puts the target on "
            f"{found}, which is visible here"
        )


@functools.cache
def _store() -> dist.Store:
    """Where the ranks find each other. Kept for the life of the process: rank 0's serves all, in training too."""
    store, _, _ = next(iter(dist.rendezvous("env://")))
    return cast(dist.Store, store)


def _on_cpu(argument: Any) -> Any:
    return argument.cpu() if isinstance(argument, torch.Tensor) else argument
