"""Where the target lies: a local folder, a snapshot of the Hub, or the conversion of a packaged GGUF file."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from data_specs.manifest import read_json, write_json
from pipeline.config import ConfigError, TargetConfig
from pipeline.console import say
from pipeline.store.work import WorkShare, publish_folder
from pipeline.target.files import eos_ids, quiet_transformers

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
COMMIT = re.compile(r"[0-9a-f]{40}")
SOURCE = "source.json"  # says what a converted folder was made from; it is written last
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENOSPC)


def locate(cfg: TargetConfig) -> Path:
    """The target's folder: a local one, a snapshot of the Hub, or the conversion of a packaged GGUF file.

    A GGUF file is converted at the first call. Raises ``ConfigError`` with the key if there is no such target.
    """
    path = "" if cfg.path in (None, "???") else cfg.path
    if cfg.package:
        if path:
            raise ConfigError(f"target.path={path} and target.package={cfg.package}: set only one of the two")
        return _converted(cfg)
    if not path:
        raise ConfigError("target.path: expected a local folder or a Hub id, got nothing")
    if Path(path).expanduser().is_dir():
        return _checked(Path(path).expanduser())
    if not HUB_ID.fullmatch(path):
        raise ConfigError(f"target.path={path}: expected an existing folder or a Hub id (owner/name)")
    return _downloaded(cfg, path)


def _checked(folder: Path) -> Path:
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


def cache_home() -> Path:
    """The folder of draftline's files in the user's cache (``XDG_CACHE_HOME``, else ``~/.cache``)."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftline"
    except RuntimeError as error:  # the user has no home folder
        raise ConfigError(
            f"the user has no home folder ({error}): set XDG_CACHE_HOME to a writable folder"
        ) from error


def _converted(cfg: TargetConfig) -> Path:
    """The converted folder of a packaged GGUF file. One process makes it while the others wait."""
    source = _packaged_file(cfg)
    folder = cache_home() / "targets" / cfg.name
    origin = {"package": cfg.package, "gguf": cfg.gguf, "bytes": source.stat().st_size}
    with _writable_cache(folder.parent):
        _convert_once(cfg, source, folder, origin)
    if read_json(folder / SOURCE) != origin:
        raise ConfigError(
            f"target.name={cfg.name}: {folder} was converted from another file, not from {source}; remove that folder"
        )
    return folder


def _convert_once(cfg: TargetConfig, source: Path, folder: Path, origin: dict[str, Any]) -> None:
    """Convert ``source`` into ``folder``, unless a whole conversion is there; an incomplete one is replaced."""
    if (folder / SOURCE).is_file():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    for _ in WorkShare(folder.parent, [cfg.name], lambda _: (folder / SOURCE).is_file()):
        partial = folder.with_name(f".{cfg.name}.{socket.gethostname()}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        say(f"target {cfg.name}: converting {source.name} of package {cfg.package} (once) ...")
        _convert_gguf(source, partial)
        write_json(partial / SOURCE, origin)
        if not (folder / SOURCE).is_file():  # without this file the conversion is incomplete
            shutil.rmtree(folder, ignore_errors=True)
        publish_folder(partial, folder)
        say(f"target {cfg.name}: written to {folder}")


@contextmanager
def _writable_cache(folder: Path) -> Iterator[None]:
    """Raise a ``ConfigError`` with the remedy if the system cannot write below the user's cache."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise ConfigError(
            f"target.package: cannot write the converted target below {folder}: {error.strerror}; "
            "set XDG_CACHE_HOME to a writable folder"
        ) from error


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
            source.parent,
            gguf_file=source.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
        )
        # transformers refuses to save the model as long as anything marks it as quantized.
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
