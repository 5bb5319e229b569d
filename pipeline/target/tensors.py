"""The target's embedding, head and decoder layers, read from its files without the model.

Shapes: H hidden size, V embedding rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.config import ConfigError, TargetConfig
from pipeline.target.files import dtype_of, read_config
from pipeline.target.location import locate

OWN_EMBEDDING, OWN_HEAD = (
    "embed.weight",
    "head.weight",
)  # the names in DeepSeek-V4's files, which have no prefix


@dataclass(frozen=True)
class TargetTensors:
    """The target's tensors that a draft uses: ``embedding`` [V, H], ``head`` [V, H], ``final_norm`` [H]."""

    embedding: Tensor
    head: Tensor
    final_norm: Tensor
    config: Any  # the target's text config
    folder: Path


def load_tensors(cfg: TargetConfig) -> TargetTensors:
    """Read only those tensors, in ``target.dtype``; a tied head is treated as in the model's own loader.

    Raises ``ConfigError`` if a tensor is missing; a missing head is never replaced by random numbers.
    """
    folder = locate(cfg)
    config = read_config(folder, cfg)
    files = _tensor_files(folder)
    prefix = _prefix(folder, files)
    heads = _named(files, "lm_head.weight") or [name for name in files if name == OWN_HEAD]
    # A tied head is stored once. If a file holds both tensors, its head counts, whatever the flag says.
    tied = bool(getattr(config, "tie_word_embeddings", False))
    if not heads and not tied:
        raise ConfigError(
            f"{folder}: expected the tensor lm_head.weight, because config.json does not tie it to the embedding"
        )
    embedding = OWN_EMBEDDING if OWN_EMBEDDING in files else f"{prefix}embed_tokens.weight"
    names = {"embedding": embedding, "final_norm": f"{prefix}norm.weight"}
    names["head"] = heads[0] if heads else names["embedding"]
    tensors = {key: _read(folder, files, name).to(dtype_of(cfg)) for key, name in names.items()}
    return TargetTensors(**tensors, config=config, folder=folder)


def load_layers(cfg: TargetConfig, layers: list[int]) -> dict[int, dict[str, Tensor]]:
    """Raw weights of decoder ``layers`` in ``target.dtype``: layer number -> name inside the layer -> tensor.

    Raises ``ConfigError`` for a layer that does not exist or is quantised.
    """
    folder = locate(cfg)
    files = _tensor_files(folder)
    prefix = _prefix(folder, files)
    found: dict[int, dict[str, Tensor]] = {}
    for layer in layers:
        start = f"{prefix}layers.{layer}."
        names = [name for name in files if name.startswith(start)]
        if not names:
            raise ConfigError(f"{folder}: expected a decoder layer {layer}, found no tensor {start}*")
        raw = {name.removeprefix(start): _read(folder, files, name) for name in names}
        for name, value in raw.items():
            if value.element_size() == 1 and value.dtype != torch.bool:
                raise ConfigError(
                    f"{folder}: tensor {start}{name} is {value.dtype}: a draft cannot start from quantised layers "
                    "(drafter.init.layers=false)"
                )
        found[layer] = {name: value.to(dtype_of(cfg)) for name, value in raw.items()}
    return found


def _tensor_files(folder: Path) -> dict[str, Path]:
    """The safetensors file that holds each tensor, by the tensor's name."""
    from safetensors import safe_open

    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= dict.fromkeys(file.keys(), path)
    return found


def _prefix(folder: Path, files: dict[str, Path]) -> str:
    """The prefix of the text decoder's tensor names, such as ``model.`` or ``model.language_model.``."""
    if OWN_EMBEDDING in files:
        return ""
    ends = "embed_tokens.weight"
    found = _named(files, ends)
    if len(found) != 1:
        raise ConfigError(f"{folder}: expected one tensor whose name ends in {ends}, got {found}")
    return found[0].removesuffix(ends)


def _named(files: dict[str, Path], ends: str) -> list[str]:
    """The tensors whose name is ``ends``, with or without a prefix."""
    return [name for name in files if name == ends or name.endswith(f".{ends}")]


def _read(folder: Path, files: dict[str, Path], name: str) -> Tensor:
    from safetensors import safe_open

    if name not in files:
        raise ConfigError(f"{folder}: expected the tensor {name} in its safetensors files, found none")
    with safe_open(files[name], framework="pt") as file:
        return file.get_tensor(name)
