"""The target's embedding, head and decoder layers, read from its files without the rest of the model.

transformers reads them into a model of the target's own class, from which all other modules have been removed. So it
handles names, the files of the index, a tied head and the renamed tensors of old files as for a whole model.

Shapes: H hidden size, V embedding rows.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.config import ConfigError, TargetConfig
from pipeline.target.architecture import empty_model, model_errors, model_parts
from pipeline.target.files import dtype_of, quiet_transformers, text_config, weight_files
from pipeline.target.location import locate


@dataclass(frozen=True)
class TargetTensors:
    """The target's tensors that a draft uses: ``embedding`` [V, H], ``head`` [V, H], ``final_norm`` [H]."""

    embedding: Tensor
    head: Tensor
    final_norm: Tensor
    config: Any  # the target's text config
    folder: Path


def load_tensors(cfg: TargetConfig, device: str = "cpu") -> TargetTensors:
    """Read only these tensors, in ``target.dtype``, by the names of the model's class.

    On the ``device`` meta, names and shapes are compared with the files, but no number is read. Raises ``ConfigError``
    naming a tensor that is missing, or quantised in a form that transformers cannot undo.
    """
    folder = locate(cfg)
    model = _partial_model(folder, cfg, empty_model(folder, cfg), [], device)
    tensors = {
        name: module.weight.detach().to(device, dtype_of(cfg))
        for name, module in model_parts(model)._asdict().items()
    }
    if tensors["head"].data_ptr() == tensors["embedding"].data_ptr():
        tensors["head"] = tensors["head"].clone()  # safetensors cannot store both if they share memory
    return TargetTensors(**tensors, config=text_config(model.config), folder=folder)


def load_layers(cfg: TargetConfig, layers: list[int]) -> dict[int, dict[str, Tensor]]:
    """Weights of decoder ``layers`` in ``target.dtype``, by their names inside the layer."""
    folder = locate(cfg)
    whole = empty_model(folder, cfg)
    for layer in layers:
        if layer >= len(whole.get_decoder().layers):
            raise ConfigError(f"{folder}: has no decoder layer {layer}")
    found = _partial_model(folder, cfg, whole, layers).get_decoder().layers
    return {layer: found.get_submodule(str(layer)).to(dtype_of(cfg)).state_dict() for layer in layers}


def check_same(target: Any, tensors: TargetTensors) -> None:
    """Raise ``ConfigError`` naming the first of ``tensors`` that differs from that of the loaded ``target``.

    With another embedding or head than the target's, a draft trains well, but its tokens are never accepted.
    """
    for name, module in model_parts(target.model)._asdict().items():
        read, own = getattr(tensors, name), module.weight
        if own.dtype != read.dtype or not torch.equal(own.cpu(), read.cpu()):
            raise ConfigError(
                f"{target.folder}: tensor {name}: expected the values in {type(target.model).__name__} "
                f"({own.dtype}, {list(own.shape)}), got other values ({read.dtype}, {list(read.shape)}) from its files"
            )


def _partial_model(
    folder: Path, cfg: TargetConfig, whole: Any, layers: list[int], device: str = "cpu"
) -> Any:
    """The model of ``folder``, loaded with only embedding, head, final norm and the decoder ``layers``.

    ``whole`` is its empty model. Most quantised models do not quantise embedding and head, so the first
    attempt does without the library of the quantisation.
    """
    wanted = {*model_parts(whole), *(whole.get_decoder().layers[layer] for layer in layers)}
    names = [name for name, module in whole.named_modules() if module in wanted]
    config = copy.deepcopy(whole.config)
    quantization = config.__dict__.pop("quantization_config", None)
    model, faults = _load_kept(folder, cfg, type(whole), config, names, device)
    if faults and quantization is not None:
        config.quantization_config = {**quantization, "dequantize": True}
        model, faults = _load_kept(folder, cfg, type(whole), config, names)
    faults += [name for name, value in model.named_parameters() if not value.is_floating_point()]
    if faults:
        files = ", ".join(sorted({path.name for path in weight_files(folder).values()}))
        raise ConfigError(
            f"{folder}: tensor {faults[0]}: expected it whole in {files}, but it is missing or quantised in a form "
            f"that transformers cannot undo (quantization_config: {quantization})"
        )
    return model


def _load_kept(
    folder: Path, cfg: TargetConfig, kind: Any, config: Any, names: list[str], device: str = "cpu"
) -> tuple[Any, list[str]]:
    """A model of class ``kind`` with only the modules ``names``, and the names of its tensors that were not read.

    Tensors in the files with the prefix of such a module that are not part of it, such as a scale, also count.
    """

    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__(self, *args, **kwargs)
        _keep_only(self, {self.get_submodule(name) for name in names})

    # transformers renames the tensors of old files by the class's name and module, so the part gets those of the whole.
    part: Any = type(kind.__name__, (kind,), {"__init__": initialise, "__module__": kind.__module__})
    with model_errors(folder, cfg), quiet_transformers():
        model, found = part.from_pretrained(
            folder, config=config, dtype=dtype_of(cfg), output_loading_info=True,
            device_map=None if device == "cpu" else device,
        )  # fmt: skip
    starts = tuple(f"{name}." for name in names)
    foreign = [key for key in found["unexpected_keys"] if key.startswith(starts)]
    return model, sorted([*found["missing_keys"], *foreign])


def _keep_only(module: nn.Module, kept: Collection[nn.Module]) -> None:
    """Remove every module below ``module`` that is not in ``kept``, inside one of them, or around one."""
    for name, child in list(module.named_children()):
        if child in kept:
            continue
        if any(inner in kept for inner in child.modules()) or isinstance(child, nn.ModuleList):
            _keep_only(child, kept)  # keep even an empty list: some classes count their layers
        else:
            del module._modules[name]  # the other modules of a list keep their numbers, unlike after delattr
