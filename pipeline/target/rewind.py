"""A KV cache that goes back, for models whose layers cannot take single positions back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class RewindCache:
    """The cache of a model that keeps more than keys and values: it goes back to where the last run began.

    DeepSeek-V4's compressors close windows of tokens for good, and transformers' ``crop`` does not know of them. So a
    copy from before the last run is kept. A crop returns to it, and the kept tokens of that run *wait*: they are run
    once more in front of the next ones, which needs no run of its own. A crop to before the last run starts from
    nothing, with all kept tokens waiting. Either way the states are those of a run from scratch.
    """

    def __init__(self, empty: Callable[[], Any]) -> None:
        self.empty = empty  # makes an empty cache of transformers
        self.cache = empty()
        self.covered = 0  # positions that ``cache`` holds
        self.ids: Tensor | None = None  # int64 [B, S]: all tokens held, those that wait included
        self.earlier: tuple[Any, int] | None = None  # cache and positions before the last run

    def get_seq_length(self) -> int:
        """Positions held."""
        return 0 if self.ids is None else self.ids.shape[1]

    def take(self, ids: Tensor) -> Tensor:
        """The tokens that the model has to run for ``ids`` int64 [B, S]: those that wait, then these."""
        self.ids = ids if self.ids is None else torch.cat([self.ids, ids], dim=1)
        self.earlier = copy.deepcopy(self.cache), self.covered
        fresh, self.covered = self.ids[:, self.covered :], self.ids.shape[1]
        return fresh

    def crop(self, length: int) -> None:
        """Keep the first ``length`` positions (at most as many as are held)."""
        if self.ids is not None:
            self.ids = self.ids[:, :length]
        if length >= self.covered:
            return
        if self.earlier is None or self.earlier[1] > length:
            self.earlier = self.empty(), 0
        (self.cache, self.covered), self.earlier = self.earlier, None

    def batch_select_indices(self, rows: Tensor) -> None:
        """Keep the sequences ``rows`` int64 [b] of the batch."""
        self.cache.reorder_cache(rows)  # unlike transformers' own selection it takes the compressors along
        self.ids = None if self.ids is None else self.ids[rows]
        self.earlier = None  # still holds all rows; a crop starts from nothing
