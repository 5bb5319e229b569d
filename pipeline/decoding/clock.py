"""A clock whose laps add up to the whole duration, so that no time is left out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Seconds of the work on ``device``. On a GPU, every reading waits until the work queued so far is done."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._origin = self._mark = self._now()

    def time(self) -> float:
        """Seconds since the clock was made, without the pauses."""
        return self._now() - self._origin

    def since(self) -> float:
        """Seconds since the last lap."""
        return self._now() - self._mark

    def lap(self) -> float:
        """Seconds since the last lap; a new lap begins."""
        before, self._mark = self._mark, self._now()
        return self._mark - before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The clock stands still inside the block, and a new lap begins at its end."""
        began = self._now()
        yield
        self._mark = self._now()
        self._origin += self._mark - began

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()
