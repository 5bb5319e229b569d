"""The draft that a run will train: its config and the shapes of its tensors, known before its cache exists."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from pipeline.config import Config, ConfigError, InitConfig
from pipeline.drafts.backbone import Backbone
from pipeline.drafts.model import Model
from pipeline.drafts.registry import ALGORITHMS, Start, build, chosen_taps
from pipeline.drafts.starts.mask_token import choose
from pipeline.preflight import Ahead, LaterError
from pipeline.states.reader import CacheReader
from pipeline.store.artifacts import ArtifactError
from pipeline.target.files import load_tokenizer, resolve_taps
from pipeline.target.tensors import load_tensors


def planned_draft(ahead: Ahead) -> Model:
    """The draft on the meta device. If the cache for its training exists, its taps come from there.

    Raises ``UserError`` if the target's tensors cannot be read, if the family or the algorithm cannot draft for the
    target, or if the target lacks the taps, the mask token or the vocabulary.
    """
    config = ahead.config
    drafter, tensors = config.drafter, load_tensors(config.target, "meta")
    rows = len(tensors.embedding)
    try:
        taps = CacheReader(ahead.cache().path).spec.taps
    except (LaterError, ArtifactError):
        taps = resolve_taps(config.target, tensors.config.num_hidden_layers)
    check_draft(config, rows)
    # ``drafter.init`` changes the values of the tensors, but not their shapes.
    plain = dataclasses.replace(drafter, init=InitConfig())
    start = Start(ids=None if drafter.vocab_size is None else torch.arange(drafter.vocab_size, device="meta"))
    chosen = [taps[i] for i in chosen_taps(drafter, taps)]
    with torch.device("meta"):
        return build(plain, tensors, chosen, mask_token(config, tensors.folder, rows), start)


def check_draft(config: Config, rows: int) -> None:
    """Raise ``ConfigError`` if the draft cannot be compiled, or its vocabulary is not below the target's ``rows``."""
    drafter, size = config.drafter, config.drafter.vocab_size
    if size is not None and size >= rows:
        raise ConfigError(f"drafter.vocab_size={size}: expected less than the target's {rows} rows")
    if config.train.compile and not issubclass(ALGORITHMS[drafter.algorithm], Backbone):
        raise ConfigError(f"train.compile: drafter.algorithm={drafter.algorithm} cannot be compiled")


def mask_token(config: Config, folder: Path, rows: int) -> int | None:
    """The id of the mask token, or None for a drafter without masked slots; ``folder`` is that of the target.

    Raises ``ConfigError`` if the id is not below ``rows``, the number of embedding rows. Whether the data contain the
    token can only be checked once the cache exists.
    """
    number = config.target.mask_token_id
    if not issubclass(ALGORITHMS[config.drafter.algorithm], Backbone):
        return None
    if number is None:
        return choose(load_tokenizer(folder, config.target), rows)
    if number >= rows:
        raise ConfigError(f"target.mask_token_id={number}: expected an embedding row, 0 to {rows - 1}")
    return number
