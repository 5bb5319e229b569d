"""Facts from the target's files, without loading its weights: identity, config, tokenizer, end tokens and taps."""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

import torch

from data_specs.manifest import read_json
from pipeline.config import ConfigError, TargetConfig
from pipeline.prompts.template import check_options, digest, end_of_turn

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TEXT_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
    "chat_template.json", "model.safetensors.index.json",
)  # fmt: skip
MODEL_FILES = ("config.json", "generation_config.json", "model.safetensors.index.json")  # not the tokenizer's
TOKENIZER_FILES = tuple(name for name in TEXT_FILES if name not in MODEL_FILES)
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
ONE_BYTE = ("F8", "F4", "I8", "U8")  # safetensors' names of types that need a scale
SAMPLE_BYTES = 4096  # read at the start, the middle and the end of every tensor for the identity


class TensorEntry(TypedDict):
    """One tensor in the header of a safetensors file."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]  # bytes after the header


def identity(folder: Path) -> str:
    """SHA-256 (hex) over config, tokenizer, chat template, generation config, and samples of the weights.

    The samples are the header of every file and the first, middle and last 4 KiB of every tensor. Reading them takes
    well under a second, and a fine-tune that overwrites the files changes them.
    """
    digest = _text_digest(folder, TEXT_FILES)
    for path in sorted(set(weight_files(folder).values())):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        _digest_weights(path, digest.update)
    return digest.hexdigest()


def tokenizer_identity(folder: Path) -> str:
    """SHA-256 (hex) over the files of the tokenizer and the chat template."""
    return _text_digest(folder, TOKENIZER_FILES).hexdigest()


def parameter_count(folder: Path) -> int:
    """How many numbers the safetensors files in ``folder`` hold, according to their headers."""
    files = set(weight_files(folder).values())
    return sum(math.prod(entry["shape"]) for path in files for entry in _header(path).values())


def weight_files(folder: Path) -> dict[str, Path]:
    """The safetensors file from which transformers loads each tensor, by the tensor's name.

    Without an index, that is ``model.safetensors``. Other files, such as a shard of an older save, are ignored. Raises
    ``ConfigError`` naming a file or tensor that the index lists but that does not exist.
    """
    index, single = folder / INDEX, folder / SINGLE
    if single.is_file() or not index.is_file():
        if not single.is_file():
            raise ConfigError(f"{folder}: expected {SINGLE} or {INDEX}, found neither")
        return dict.fromkeys(_header(single), single)
    listed = {name: folder / file for name, file in read_json(index)["weight_map"].items()}
    held = {path: _header(path) if path.is_file() else None for path in sorted(set(listed.values()))}
    for name, path in listed.items():
        names = held[path]
        if names is None or name not in names:
            what = "this file does not exist" if names is None else "this file does not hold it"
            raise ConfigError(
                f"{index}: tensor {name} is listed in {path.name}, but {what}: fetch the file again"
            )
    return listed


def check_weights(folder: Path, config: Any) -> None:
    """Compare the headers of the files in ``folder`` with its whole ``config``.

    Raises ``ConfigError`` naming a tensor that the index lists but no file holds, or a weight of one byte per number if
    config.json does not describe its quantisation, because it would be read without its scale.
    """
    files = set(weight_files(folder).values())
    if hasattr(config, "quantization_config"):
        return
    for path in sorted(files):
        for name, entry in _header(path).items():
            if name.endswith("weight") and entry["dtype"].startswith(ONE_BYTE):
                raise ConfigError(
                    f"{path}: tensor {name} is stored as {entry['dtype']}, but config.json has no quantization_config "
                    "with its scale; use the folder of the unquantised model, or one with a complete config.json"
                )


def _text_digest(folder: Path, names: Sequence[str]) -> hashlib._Hash:
    digest = hashlib.sha256()
    for path in [folder / name for name in names if (folder / name).is_file()]:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest


def _header(path: Path) -> dict[str, TensorEntry]:
    """The header of a safetensors file, by tensor name."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, TensorEntry] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header


def _digest_weights(path: Path, update: Callable[[bytes], None]) -> None:
    """Call ``update`` with the header of a safetensors file and with samples of each tensor."""
    with path.open("rb") as file:
        data = 8 + struct.unpack("<Q", file.read(8))[0]
        update(file.read(data - 8))
        for _, entry in sorted(_header(path).items()):
            begin, end = entry["data_offsets"]
            for start in sorted({begin, (begin + end) // 2, max(begin, end - SAMPLE_BYTES)}):
                file.seek(data + start)
                update(file.read(min(SAMPLE_BYTES, end - start)))


def read_config(folder: Path, cfg: TargetConfig) -> Any:
    """The text config of the target in ``folder``."""
    return text_config(read_whole_config(folder, cfg))


def read_whole_config(folder: Path, cfg: TargetConfig) -> Any:
    """The config of the target in ``folder``, with all modalities. ``ConfigError`` if transformers does not know it."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=cfg.trust_remote_code)
    except (ValueError, KeyError, OSError) as error:
        raise ConfigError(f"target.path={folder}: transformers cannot read config.json: {error}") from error


def load_tokenizer(folder: Path, cfg: TargetConfig) -> Any:
    """The target's tokenizer (a ``PreTrainedTokenizerFast``), whose chat template gets ``target.template_kwargs``.

    Raises ``ConfigError`` naming the key that would change nothing in this template.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=cfg.trust_remote_code)
    tokenizer.template_kwargs = cfg.template_kwargs
    if tokenizer.chat_template:
        check_options(tokenizer, cfg.thinking)
    return tokenizer


def template_identity(folder: Path, cfg: TargetConfig) -> dict[str, Any]:
    """Everything that determines how messages become a prompt; manifests keep it under ``target``."""
    template = digest(load_tokenizer(folder, cfg))
    return {"chat_template": template, "thinking": cfg.thinking, "template_kwargs": cfg.template_kwargs}


def check_template(made: Mapping[str, Any], now: Mapping[str, Any], whose: str) -> None:
    """Raise ``ConfigError`` if the ``template_identity`` in a manifest, ``made``, differs from this run's (pitfall 4).

    ``whose`` names the artifact. Keys that an older manifest does not have are not compared.
    """
    for name, has in now.items():
        if (had := made.get(name, has)) != has:
            raise ConfigError(f"target.{name}={has}: expected {had}, as in {whose}")


def text_config(config: Any) -> Any:
    """The text config of a multimodal ``config``, else ``config`` itself."""
    return config.get_text_config(decoder=True)


def logit_scale(config: Any) -> float:
    """The factor by which the model with the text config ``config`` scales its logits (Cohere, Granite, Falcon-H1)."""
    factors = (getattr(config, name, None) or 1.0 for name in ("logit_scale", "lm_head_multiplier"))
    return math.prod(factors) / (getattr(config, "logits_scaling", None) or 1.0)


def eos_ids(folder: Path) -> tuple[int, ...]:
    """The ids that end an answer according to the generation config and the config, in this order, each once.

    Both may hold one id or a list. Raises ``ConfigError`` if neither holds any.
    """
    values = [read_json(folder / name) for name in TEXT_FILES[1::-1] if (folder / name).is_file()]
    values += [value["text_config"] for value in values if isinstance(value.get("text_config"), dict)]
    named = [value["eos_token_id"] for value in values if value.get("eos_token_id") is not None]
    if not named:
        raise ConfigError(
            f"{folder}: expected eos_token_id in generation_config.json or config.json, found none"
        )
    return tuple(dict.fromkeys(int(i) for eos in named for i in (eos if isinstance(eos, list) else [eos])))


def end_ids(folder: Path, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends an answer: ``eos_ids``, the tokenizer's own, and the end of turn in its template.

    A generation config may name only <|endoftext|> although the target ends its turns with <|im_end|>.
    """
    ends = [tokenizer.eos_token_id]
    if tokenizer.chat_template and (end := end_of_turn(tokenizer)) is not None:
        ends.append(tokenizer.convert_tokens_to_ids(end))
    return tuple(dict.fromkeys([*eos_ids(folder), *(end for end in ends if end is not None)]))


def default_taps(num_layers: int, num_taps: int) -> list[int]:
    """Layers at even distances from 1 to ``num_layers`` - 3: 5 of 36 are the paper's [1, 9, 17, 25, 33]."""
    if num_taps == 1:
        return [num_layers // 2]
    span = max(0, num_layers - 4)
    return sorted({min(num_layers - 1, round(1 + i * span / (num_taps - 1))) for i in range(num_taps)})


def resolve_taps(cfg: TargetConfig, num_layers: int) -> list[int]:
    """The configured taps, else ``default_taps``. Raises ``ConfigError`` for layers that do not exist."""
    taps = default_taps(num_layers, cfg.num_taps) if cfg.taps is None else cfg.taps
    return checked_taps(taps, num_layers)


def checked_taps(taps: list[int], num_layers: int) -> list[int]:
    """``taps``, if they are different layers of a target with ``num_layers``; else raises ``ConfigError``."""
    if not taps or len(set(taps)) != len(taps) or not all(-1 <= tap < num_layers for tap in taps):
        raise ConfigError(f"target.taps={list(taps)}: expected different layers from -1 to {num_layers - 1}")
    return list(taps)


def dtype_of(cfg: TargetConfig) -> torch.dtype:
    """The torch dtype that ``target.dtype`` names."""
    return DTYPES[cfg.dtype]


def device_of(cfg: TargetConfig) -> torch.device:
    """The device that ``target.device`` names. ``auto`` is this rank's GPU, or the CPU if there is no GPU."""
    if cfg.device == "cpu" or (cfg.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if cfg.device not in ("auto", "cuda"):
        raise ConfigError(f"target.device={cfg.device}: expected auto, cpu or cuda")
    if not torch.cuda.is_available():
        raise ConfigError("target.device=cuda: expected a GPU, but none is visible")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the progress bars and hints of transformers, because draftline prints what the user needs."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()
