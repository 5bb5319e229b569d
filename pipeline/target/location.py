"""The target's folder: a local one, a snapshot of the Hub, or the conversion of a packaged GGUF file."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import torch

from data_specs.manifest import read_json
from pipeline.config import ConfigError, TargetConfig
from pipeline.target.adapter import ADAPTER, merged
from pipeline.target.conversion import made_once
from pipeline.target.files import eos_ids, quiet_transformers

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
COMMIT = re.compile(r"[0-9a-f]{40}")


def locate(cfg: TargetConfig) -> Path:
    """The target's folder: a local one, a snapshot of the Hub, or the conversion of a packaged GGUF file.

    The first call converts a GGUF file. Raises ``ConfigError`` naming the key if there is no such target.
    """
    folder = _located(cfg)
    if cfg.adapter:
        return merged(cfg, folder)
    if (folder / ADAPTER).is_file():
        raise ConfigError(
            f"target.path={folder}: it holds an adapter ({ADAPTER}) that is not part of the weights; set "
            f"target.adapter={folder} to merge it, or remove that file from the folder"
        )
    return folder


def _located(cfg: TargetConfig) -> Path:
    """The folder of the target, without its adapter."""
    path = "" if cfg.path in (None, "???") else cfg.path
    if cfg.package:
        if path:
            raise ConfigError(f"target.path={path} and target.package={cfg.package}: set only one of the two")
        source = _packaged_file(cfg)
        origin = {"package": cfg.package, "gguf": cfg.gguf, "bytes": source.stat().st_size}
        what = f"converting {source.name} of package {cfg.package}"
        return made_once(cfg.name, origin, what, lambda partial: _convert_gguf(source, partial))
    if not path:
        raise ConfigError("target.path: expected a local folder or a Hub id, got nothing")
    if Path(path).expanduser().is_dir():
        return _checked(Path(path).expanduser())
    if not HUB_ID.fullmatch(path):
        raise ConfigError(f"target.path={path}: expected an existing folder or a Hub id (owner/name)")
    return _downloaded(cfg, path)


def _checked(folder: Path) -> Path:
    if (folder / ADAPTER).is_file() and not (folder / "config.json").is_file():
        base = read_json(folder / ADAPTER).get("base_model_name_or_path")
        raise ConfigError(
            f"target.path={folder}: it holds an adapter but no model; set target.path={base} and "
            f"target.adapter={folder}"
        )
    for pattern in ("config.json", "*.safetensors"):
        if not any(folder.glob(pattern)):
            raise ConfigError(f"target.path={folder}: expected a model folder, but it holds no {pattern}")
    return folder


def _downloaded(cfg: TargetConfig, name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"] + ["*.py"] * cfg.trust_remote_code
    try:
        # Subfolders are skipped: they hold the same weights in other formats (gpt-oss: original/ and metal/).
        found = snapshot_download(name, revision=cfg.revision, allow_patterns=patterns, ignore_patterns="*/*")
        return _checked(Path(found))
    except (HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError) as error:
        raise ConfigError(
            f"target.path={name}: there is no such local folder, and the download from the Hub failed: {error}"
        ) from error


def snapshot_commit(folder: Path) -> str | None:
    """The commit (40 hex digits) if ``folder`` is a snapshot in the Hub's cache, else None."""
    snapshot = folder.parent.name == "snapshots" and COMMIT.fullmatch(folder.name)
    return folder.name if snapshot else None


def _packaged_file(cfg: TargetConfig) -> Path:
    """The GGUF file in an installed package, which is not imported."""
    spec = importlib.util.find_spec(str(cfg.package))
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"target.package={cfg.package}: this package is not installed")
    if not cfg.gguf:
        raise ConfigError("target.gguf: expected the name of a file in target.package, got nothing")
    for location in spec.submodule_search_locations:
        if (Path(location) / cfg.gguf).is_file():
            return Path(location) / cfg.gguf
    raise ConfigError(f"target.gguf={cfg.gguf}: no such file in {list(spec.submodule_search_locations)}")


def _convert_gguf(source: Path, folder: Path) -> None:
    """Write the GGUF file ``source`` as an ordinary bf16 model folder with tokenizer and chat template."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with quiet_transformers():
        model: Any = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
        )  # fmt: skip
        # transformers refuses to save a model that anything marks as quantized.
        for holder, name in ((model.config, "quantization_config"), (model, "quantization_method")):
            if hasattr(holder, name):
                delattr(holder, name)
        model.hf_quantizer, model.is_quantized = None, False
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        tokenizer.save_pretrained(folder)
    if tokenizer.eos_token_id not in eos_ids(folder):
        raise ConfigError(
            f"target.gguf={source}: expected its tokenizer's end token among the ids that end a generation"
        )
