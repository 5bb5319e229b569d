"""The target's class and the modules that a draft uses, from a model on the meta device, which has no weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from pipeline.config import ConfigError, TargetConfig
from pipeline.target.files import check_weights, read_whole_config, text_config


class ModelParts(NamedTuple):
    """The modules of a model that a draft needs; ``_asdict`` gives them by name."""

    embedding: Any
    head: Any
    final_norm: Any


def empty_model(folder: Path, cfg: TargetConfig) -> Any:
    """The model of ``folder`` on the meta device: all modules without weights, in well under a second.

    Raises ``ConfigError`` with the class and the reason if draftline cannot use such a model, and for files that
    ``check_weights`` refuses.
    """
    config = read_whole_config(folder, cfg)
    check_weights(folder, config)
    with model_errors(folder, cfg), torch.device("meta"):
        model = auto_class(config).from_config(config, trust_remote_code=cfg.trust_remote_code)
    check_usable(model, folder)
    return model


def auto_class(config: Any) -> Any:
    """transformers' class that loads the whole model of ``config``, which is a text model or a multimodal one.

    Raises ``ConfigError`` naming the type of a model that does not continue text.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    is_multimodal = type(config) in AutoModelForImageTextToText._model_mapping
    is_text = type(config) in AutoModelForCausalLM._model_mapping
    if not (is_text or is_multimodal or getattr(config, "auto_map", None)):
        raise ConfigError(
            f"target.path={config.name_or_path}: expected a model that continues text, but transformers has no such "
            f"class for model_type={config.model_type}"
        )
    return AutoModelForImageTextToText if is_multimodal and not is_text else AutoModelForCausalLM


def check_usable(model: Any, folder: Path) -> None:
    """Raise ``ConfigError`` with the class of ``model`` if it lacks something that draftline needs."""
    found = {
        "a decoder with layers": hasattr(model.get_decoder(), "layers"),
        "a head": getattr(model.get_output_embeddings(), "weight", None) is not None,
        "a final norm": bool(_norms(model)),
        "attention heads": hasattr(text_config(model.config), "num_attention_heads"),
    }
    lacking = [name for name, is_there in found.items() if not is_there]
    if lacking:
        raise ConfigError(
            f"{folder}: a draft cannot be trained for {type(model).__name__}: expected a model with "
            f"{' and '.join(lacking)}, which this class does not have"
        )


def model_parts(model: Any) -> ModelParts:
    """The embedding, head and final norm of ``model``, found by its class."""
    return ModelParts(model.get_input_embeddings(), model.get_output_embeddings(), _norms(model)[-1])


def _norms(model: Any) -> list[nn.Module]:
    """The norms of the decoder itself, not of its layers. The last of them is the final norm."""
    shape = (text_config(model.config).hidden_size,)
    children = model.get_decoder().children()
    return [child for child in children if getattr(getattr(child, "weight", None), "shape", None) == shape]


@contextmanager
def model_errors(folder: Path, cfg: TargetConfig) -> Iterator[None]:
    """Raise a ``ConfigError`` that names the target if transformers cannot make or load the model."""
    try:
        yield
    except (ValueError, ImportError, KeyError, AttributeError, RuntimeError, OSError) as error:
        keys = f"target.attention={cfg.attention}, target.tensor_parallel={cfg.tensor_parallel}"
        raise ConfigError(
            f"target.path={folder}: transformers cannot load it with {keys}: {error}"
        ) from error
