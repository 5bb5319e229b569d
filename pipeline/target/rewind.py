"""A KV cache that can be cropped, for models whose layers cannot remove single positions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class RewindCache:
    """The cache of a model that keeps more than keys and values. A crop returns to the state before the last run.

    DeepSeek-V4's compressors close windows of tokens irreversibly, and transformers' ``crop`` ignores them. Therefore
    this cache keeps a copy from before the last run, to which a crop returns. The tokens of the last run that are kept
    *wait*: the next run computes them again before its own tokens, which takes no extra run. A crop to an earlier
    position starts with an empty cache, and all kept tokens wait. Either way, states equal those of a run from scratch.
    """

    def __init__(self, empty: Callable[[], Any]) -> None:
        self.empty = empty  # makes transformers' empty cache
        self.cache = empty()
        self.covered = 0  # how many positions ``cache`` holds
        self.ids: Tensor | None = None  # int64 [B, S]: all tokens, including those that wait
        self.earlier: tuple[Any, int] | None = None  # the cache before the last run, and its positions

    def get_seq_length(self) -> int:
        """The number of positions, including those that wait."""
        return 0 if self.ids is None else self.ids.shape[1]

    def take(self, ids: Tensor) -> Tensor:
        """The tokens that the model has to run: those that wait, then ``ids`` int64 [B, S]."""
        self.ids = ids if self.ids is None else torch.cat([self.ids, ids], dim=1)
        self.earlier = copy.deepcopy(self.cache), self.covered
        fresh, self.covered = self.ids[:, self.covered :], self.ids.shape[1]
        return fresh

    def crop(self, length: int) -> None:
        """Keep the first ``length`` positions; ``length`` is at most ``get_seq_length()``."""
        if self.ids is not None:
            self.ids = self.ids[:, :length]
        if length >= self.covered:
            return
        if self.earlier is None or self.earlier[1] > length:
            self.earlier = self.empty(), 0
        (self.cache, self.covered), self.earlier = self.earlier, None

    def batch_select_indices(self, rows: Tensor) -> None:
        """Keep the sequences ``rows`` int64 [b] of the batch."""
        self.cache.reorder_cache(rows)  # unlike transformers' own selection, this includes the compressors
        self.ids = None if self.ids is None else self.ids[rows]
        self.earlier = None  # the copy holds all rows, so a crop starts with an empty cache
