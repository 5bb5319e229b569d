"""The target's files, without the model: where they lie, what identifies them, settings, embedding and head.

Shapes: H hidden size, V embedding rows.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import math
import os
import re
import shutil
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data_specs.manifest import read_json, write_json
from pipeline.config import ConfigError, TargetConfig
from pipeline.console import say
from pipeline.store.work import WorkShare, publish_folder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
COMMIT = re.compile(r"[0-9a-f]{40}")
TEXT_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
    "chat_template.json", "model.safetensors.index.json",
)  # fmt: skip
MODEL_FILES = ("config.json", "generation_config.json", "model.safetensors.index.json")  # not the tokenizer's
SAMPLE_BYTES = 4096  # read at the start, the middle and the end of every tensor for the identity
OWN_EMBEDDING, OWN_HEAD = "embed.weight", "head.weight"  # as DeepSeek-V4 names them, without any prefix
SOURCE = "source.json"
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENOSPC)


# --- where the target lies --------------------------------------------------------------------------------


def locate(cfg: TargetConfig) -> Path:
    """The folder of the target: a local one, a Hub snapshot, or one converted once from a packaged GGUF file.

    Raises ``ConfigError`` naming the key when there is no such target.
    """
    path = "" if cfg.path in (None, "???") else cfg.path
    if cfg.package:
        if path:
            raise ConfigError(f"target.path={path} and target.package={cfg.package}: give one of the two")
        return _converted(cfg)
    if not path:
        raise ConfigError("target.path: expected a local folder or a Hub id, got nothing")
    if Path(path).expanduser().is_dir():
        return _checked(Path(path).expanduser())
    if not HUB_ID.fullmatch(path):
        raise ConfigError(f"target.path={path}: no such folder, and no Hub id (owner/name) either")
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
        # Folders inside hold the same weights in other formats (gpt-oss: original/ and metal/).
        found = snapshot_download(name, revision=cfg.revision, allow_patterns=patterns, ignore_patterns="*/*")
        return _checked(Path(found))
    except (HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError) as error:
        raise ConfigError(
            f"target.path={name}: no such folder here, and the Hub did not give it: {error}"
        ) from error


def snapshot_commit(folder: Path) -> str | None:
    """The commit (40 hex digits) of a located ``folder`` that is a snapshot of the Hub's cache, None for any other."""
    snapshot = folder.parent.name == "snapshots" and COMMIT.fullmatch(folder.name)
    return folder.name if snapshot else None


def cache_home() -> Path:
    """Folder of draftline's own files under the user's cache (``XDG_CACHE_HOME``, else ``~/.cache``)."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftline"
    except RuntimeError as error:  # a user without a home
        raise ConfigError(
            f"no home folder ({error}): set XDG_CACHE_HOME to a folder that can be written"
        ) from error


def _converted(cfg: TargetConfig) -> Path:
    """The converted folder of a packaged GGUF file; made by one process, while others wait."""
    source = _packaged_file(cfg)
    folder = cache_home() / "targets" / cfg.name
    origin = {"package": cfg.package, "gguf": cfg.gguf, "bytes": source.stat().st_size}
    share = folder.with_name(f".{cfg.name}.share")
    with _writable_cache(folder.parent):
        _convert_once(cfg, source, folder, origin, share)
    if read_json(folder / SOURCE) != origin:
        raise ConfigError(
            f"target.name={cfg.name}: {folder} was made from another file than {source}; remove it"
        )
    return folder


def _convert_once(cfg: TargetConfig, source: Path, folder: Path, origin: dict[str, Any], share: Path) -> None:
    """Convert ``source`` into ``folder`` unless it is there whole; what is there in part is replaced."""
    if (folder / SOURCE).is_file():
        return
    share.mkdir(parents=True, exist_ok=True)
    for _ in WorkShare(share, ["convert"], lambda _: (folder / SOURCE).is_file()):
        partial = folder.with_name(f".{cfg.name}.{socket.gethostname()}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        say(f"target {cfg.name}: converting {source.name} of package {cfg.package} (once) ...")
        _convert_gguf(source, partial)
        write_json(partial / SOURCE, origin)
        if not (folder / SOURCE).is_file():  # without its record it is no whole folder
            shutil.rmtree(folder, ignore_errors=True)
        publish_folder(partial, folder)
        say(f"target {cfg.name}: written to {folder}")
    shutil.rmtree(share, ignore_errors=True)


@contextmanager
def _writable_cache(folder: Path) -> Iterator[None]:
    """Turn the system's refusal to write below the user's cache into a ``ConfigError`` with the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise ConfigError(
            f"target.package: cannot write the converted target below {folder}: {error.strerror}; "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from error


def _packaged_file(cfg: TargetConfig) -> Path:
    """The GGUF file inside an installed package, found without importing the package."""
    spec = importlib.util.find_spec(str(cfg.package))
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"target.package={cfg.package}: no such package is installed")
    if not cfg.gguf:
        raise ConfigError("target.gguf: expected the name of a file in target.package, got nothing")
    for location in spec.submodule_search_locations:
        if (Path(location) / cfg.gguf).is_file():
            return Path(location) / cfg.gguf
    raise ConfigError(f"target.gguf={cfg.gguf}: no such file in {list(spec.submodule_search_locations)}")


def _convert_gguf(source: Path, folder: Path) -> None:
    """Write ``source`` as an ordinary bf16 model folder with its tokenizer and chat template."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with quiet_transformers():
        model: Any = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
        )
        # transformers takes the model for a quantized one and refuses to save it until no trace is left.
        for holder, name in ((model.config, "quantization_config"), (model, "quantization_method")):
            if hasattr(holder, name):
                delattr(holder, name)
        model.hf_quantizer, model.is_quantized = None, False
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        tokenizer.save_pretrained(folder)
    if tokenizer.eos_token_id not in eos_ids(folder):
        raise ConfigError(f"target.gguf={source}: its generation does not stop at its tokenizer's end token")


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No bars and hints of transformers: what the user has to know is said here."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()


# --- what identifies it -----------------------------------------------------------------------------------


def identity(folder: Path) -> str:
    """SHA-256 (hex) over config, tokenizer, template, generation config, and the weights.

    Of the weights: every file's header and, of every tensor, the first, middle and last 4 KiB; a fine-tune
    that was written over the old files changes it, and it takes well under a second.
    """
    digest = _text_digest(folder, TEXT_FILES)
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        _digest_weights(path, digest.update)
    return digest.hexdigest()


def tokenizer_identity(folder: Path) -> str:
    """SHA-256 (hex) over the tokenizer's files and the chat template."""
    return _text_digest(folder, [name for name in TEXT_FILES if name not in MODEL_FILES]).hexdigest()


def parameter_count(folder: Path) -> int:
    """Numbers in the safetensors files of ``folder`` (by their headers)."""
    return sum(
        math.prod(entry["shape"]) for path in folder.glob("*.safetensors") for entry in _header(path).values()
    )


def _text_digest(folder: Path, names: Sequence[str]) -> Any:
    digest = hashlib.sha256()
    for path in [folder / name for name in names if (folder / name).is_file()]:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest


def _header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file: tensor name -> dtype, shape, data_offsets."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header


def _digest_weights(path: Path, update: Callable[[bytes], None]) -> None:
    """Feed the header of a safetensors file and a sample of each tensor to ``update``."""
    with path.open("rb") as file:
        data = 8 + struct.unpack("<Q", file.read(8))[0]
        update(file.read(data - 8))
        for _, entry in sorted(_header(path).items()):
            begin, end = entry["data_offsets"]
            for start in sorted({begin, (begin + end) // 2, max(begin, end - SAMPLE_BYTES)}):
                file.seek(data + start)
                update(file.read(min(SAMPLE_BYTES, end - start)))


# --- its settings ----------------------------------------------------------------------------------------


def read_config(folder: Path, cfg: TargetConfig) -> Any:
    """The text config of the target in ``folder``."""
    from transformers import AutoConfig

    return text_config(AutoConfig.from_pretrained(folder, trust_remote_code=cfg.trust_remote_code))


def load_tokenizer(folder: Path, cfg: TargetConfig) -> Any:
    """The target's tokenizer (a ``PreTrainedTokenizerFast``)."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, trust_remote_code=cfg.trust_remote_code)


def text_config(config: Any) -> Any:
    """The text config inside a multimodal one, else ``config`` itself."""
    return config.get_text_config(decoder=True)


def eos_ids(folder: Path) -> tuple[int, ...]:
    """The ids that end an answer: of the generation config, else of the config (an int or a list there).

    Raises ``ConfigError`` when neither names one.
    """
    values = [read_json(folder / name) for name in TEXT_FILES[1::-1] if (folder / name).is_file()]
    for value in [*values, *(v["text_config"] for v in values if isinstance(v.get("text_config"), dict))]:
        eos = value.get("eos_token_id")
        if eos is not None:
            return tuple(eos) if isinstance(eos, list) else (int(eos),)
    raise ConfigError(f"{folder}: neither generation_config.json nor config.json has eos_token_id")


def default_taps(num_layers: int, num_taps: int) -> list[int]:
    """Layers spread evenly from 1 to ``num_layers`` - 3; the paper's for 36 and 5: [1, 9, 17, 25, 33]."""
    if num_taps == 1:
        return [num_layers // 2]
    span = max(0, num_layers - 4)
    return sorted({min(num_layers - 1, round(1 + i * span / (num_taps - 1))) for i in range(num_taps)})


def resolve_taps(cfg: TargetConfig, num_layers: int) -> list[int]:
    """The configured taps, else ``default_taps``; raises ``ConfigError`` for layers that do not exist."""
    return checked_taps(
        cfg.taps if cfg.taps is not None else default_taps(num_layers, cfg.num_taps), num_layers
    )


def checked_taps(taps: list[int], num_layers: int) -> list[int]:
    """``taps`` if they are different layers of ``num_layers``; else ``ConfigError``."""
    if not taps or len(set(taps)) != len(taps) or not all(-1 <= tap < num_layers for tap in taps):
        raise ConfigError(f"target.taps={list(taps)}: expected different layers from -1 to {num_layers - 1}")
    return list(taps)


def dtype_of(cfg: TargetConfig) -> torch.dtype:
    """The torch dtype that ``target.dtype`` names."""
    if cfg.dtype not in DTYPES:
        raise ConfigError(f"target.dtype={cfg.dtype}: expected one of {list(DTYPES)}")
    return DTYPES[cfg.dtype]


def device_of(cfg: TargetConfig) -> torch.device:
    """The device that ``target.device`` names; ``auto``: this rank's GPU where there is one, else the CPU."""
    if cfg.device == "cpu" or (cfg.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if cfg.device not in ("auto", "cuda"):
        raise ConfigError(f"target.device={cfg.device}: expected auto, cpu or cuda")
    if not torch.cuda.is_available():
        raise ConfigError("target.device=cuda: no GPU is visible")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


# --- its tensors, without the model -----------------------------------------------------------------------


@dataclass(frozen=True)
class TargetTensors:
    """What a draft takes from the target: ``embedding`` [V, H], ``head`` [V, H], ``final_norm`` [H]."""

    embedding: Tensor
    head: Tensor
    final_norm: Tensor
    config: Any  # text config
    folder: Path


def load_tensors(cfg: TargetConfig) -> TargetTensors:
    """Read only those tensors, in ``target.dtype``, with the rule for tied heads of the model's own load.

    Raises ``ConfigError`` when one is missing; a head is never made up.
    """
    folder = locate(cfg)
    config = read_config(folder, cfg)
    files = _tensor_files(folder)
    prefix = _prefix(folder, files)
    heads = _named(files, "lm_head.weight") or [name for name in files if name == OWN_HEAD]
    # A tied head is stored once. Where a file holds both, its head counts, whatever the flag says.
    tied = bool(getattr(config, "tie_word_embeddings", False))
    if not heads and not tied:
        raise ConfigError(
            f"{folder}: holds no lm_head.weight, and config.json does not tie it to the embedding"
        )
    embedding = OWN_EMBEDDING if OWN_EMBEDDING in files else f"{prefix}embed_tokens.weight"
    names = {"embedding": embedding, "final_norm": f"{prefix}norm.weight"}
    names["head"] = heads[0] if heads else names["embedding"]
    tensors = {key: _read(folder, files, name).to(dtype_of(cfg)) for key, name in names.items()}
    return TargetTensors(**tensors, config=config, folder=folder)


def load_layers(cfg: TargetConfig, layers: list[int]) -> dict[int, dict[str, Tensor]]:
    """Raw weights of decoder ``layers`` in ``target.dtype``, by their names inside the layer."""
    folder = locate(cfg)
    files = _tensor_files(folder)
    prefix = _prefix(folder, files)
    found: dict[int, dict[str, Tensor]] = {}
    for layer in layers:
        start = f"{prefix}layers.{layer}."
        names = [name for name in files if name.startswith(start)]
        if not names:
            raise ConfigError(f"{folder}: has no decoder layer {layer}")
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
    """Tensor name -> the safetensors file that holds it."""
    from safetensors import safe_open

    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= dict.fromkeys(file.keys(), path)
    return found


def _prefix(folder: Path, files: dict[str, Path]) -> str:
    """What the text decoder's tensor names start with, such as ``model.`` or ``model.language_model.``."""
    if OWN_EMBEDDING in files:
        return ""
    ends = "embed_tokens.weight"
    found = _named(files, ends)
    if len(found) != 1:
        raise ConfigError(f"{folder}: expected one tensor named ...{ends}, got {found}")
    return found[0].removesuffix(ends)


def _named(files: dict[str, Path], ends: str) -> list[str]:
    """Tensors whose name is ``ends``, alone or after a prefix."""
    return [name for name in files if name == ends or name.endswith(f".{ends}")]


def _read(folder: Path, files: dict[str, Path], name: str) -> Tensor:
    from safetensors import safe_open

    if name not in files:
        raise ConfigError(f"{folder}: no tensor {name} in its safetensors files")
    with safe_open(files[name], framework="pt") as file:
        return file.get_tensor(name)
