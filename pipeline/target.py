"""The frozen target: where it lies, what identifies it, its tapped layers, final states, embedding and head.

Layer numbers: tap l is the *output* of decoder layer l (``hidden_states[l + 1]`` of transformers); -1 is
the embedding's output. Where a layer passes on several streams (DeepSeek-V4: [B, S, hc_mult, H]), a tap is their mean
[B, S, H]. The last hidden state is the one *after* the final norm, so that the head applied to it gives the target's
logits. Shapes: B sequences, S tokens, m taps, H hidden size, V embedding rows.
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
from torch import Tensor, nn

from data_specs.manifest import read_json, write_json
from pipeline.config import ConfigError, TargetConfig
from pipeline.console import say
from pipeline.target_cache import RewindCache
from pipeline.target_group import LOAD, Group, together
from pipeline.work import WorkShare, publish_folder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
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
        return _checked(Path(snapshot_download(name, revision=cfg.revision, allow_patterns=patterns)))
    except (HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError) as error:
        raise ConfigError(
            f"target.path={name}: no such folder here, and the Hub did not give it: {error}"
        ) from error


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

    with _quiet_transformers():
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
def _quiet_transformers() -> Iterator[None]:
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


# --- running it -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class States:
    """What the target computed for every token."""

    hidden: Tensor  # [B, S, m*H]: outputs of the tapped layers
    last_hidden: Tensor  # [B, S, H]: after the final norm


class Target:
    """The frozen model with hooks on its tapped layers (``load`` makes one).

    Not in inference mode: transformers' split models rebuild tensors in a way that it refuses.
    """

    def __init__(self, model: Any, folder: Path, taps: list[int], group: Group | None = None) -> None:
        self.model = model.eval().requires_grad_(False)
        self.group = group
        self.config = text_config(self.model.config)
        self.decoder: Any = self.model.get_decoder()
        self.head: Any = self.model.get_output_embeddings()
        if not hasattr(self.decoder, "layers") or self.head is None:
            raise ConfigError(f"{folder}: {type(model).__name__} has no decoder with layers and a head")
        self.folder, self.taps = folder, _checked_taps(taps, len(self.decoder.layers))
        self.hidden_size: int = self.config.hidden_size
        self.vocab_size: int = self.model.get_input_embeddings().weight.shape[0]
        self.dtype: torch.dtype = self.model.dtype
        self.device: torch.device = self.model.device
        self.eos = eos_ids(folder)
        self.rewinds: bool = self.model._is_stateful  # transformers' mark of caches that it cannot crop
        self._tapped: dict[int, Tensor] = {}
        for tap in self.taps:
            self._hook(tap)

    @classmethod
    def load(cls, cfg: TargetConfig, taps: list[int] | None = None, group: Group | None = None) -> Target:
        """Load the target that ``cfg`` names; ``taps`` instead of those of ``cfg`` where given.

        ``group``: the ranks that hold it together. ``ConfigError`` where ``cfg`` asks for such ranks and there is none.
        """
        if cfg.tensor_parallel > 1 and group is None:
            raise ConfigError(
                f"target.tensor_parallel={cfg.tensor_parallel}: only the capture of states runs on several ranks "
                "together; let a server answer the prompts (answers=openai), and evaluate with target.tensor_parallel=1"
            )
        folder = locate(cfg)
        layers = read_config(folder, cfg).num_hidden_layers
        taps = resolve_taps(cfg, layers) if taps is None else taps
        if group is None:
            return cls(_load_model(cfg, folder, None), folder, taps)
        with group.together(LOAD, taps):
            target = cls(_load_model(cfg, folder, group), folder, taps, group)
            _check_heads(target, group.size)
            return target

    @property
    def identity(self) -> str:
        """See ``identity``; of the files as they are now."""
        return identity(self.folder)

    @together
    @torch.no_grad()
    def run(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cache: Any = None,
        position_ids: Tensor | None = None,
    ) -> States:
        """States of ``input_ids`` int64 [B, S].

        ``cache`` (of ``new_cache``) is extended in place. Attention is causal, so sequences that are padded
        on the right need no ``attention_mask``: no token of theirs sees the padding.
        """
        self._tapped.clear()
        ids, new = input_ids.to(self.device), input_ids.shape[1]
        if isinstance(cache, RewindCache):
            self._check_unpadded(attention_mask)
            ids, cache = cache.take(ids), cache.cache
        output = self.decoder(
            input_ids=ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            use_cache=cache is not None,
        )
        taps = [self._tapped[tap][:, -new:] for tap in self.taps]
        self._tapped.clear()
        hidden = taps[0] if len(taps) == 1 else torch.cat(taps, dim=-1)
        return States(hidden, output.last_hidden_state[:, -new:])

    def new_cache(self) -> Any:
        """An empty KV cache that ``run`` extends and ``crop`` shortens."""
        from transformers import DynamicCache

        if self.rewinds:
            return RewindCache(lambda: DynamicCache(config=self.model.config))
        cache = DynamicCache(config=self.model.config)
        cache.activate_past_recording()  # sliding-window layers drop what a crop would need otherwise
        return cache

    def crop(self, cache: Any, length: int) -> None:
        """Keep the first ``length`` positions of ``cache``.

        Raises ``ValueError`` when it holds fewer, or when a sliding window has lost what the next token would see:
        positions from before the crop before this one cannot be taken back.
        """
        held = cache.get_seq_length()
        if not 0 <= length <= held:
            raise ValueError(f"crop: the cache holds {held} positions, cannot keep {length}")
        if isinstance(cache, RewindCache):
            cache.crop(length)
            return
        _check_windows(cache, held - length, length)
        cache.crop(length - held)  # transformers counts the positions to drop, as a negative number

    @together
    @torch.no_grad()
    def logits(self, last_hidden: Tensor) -> Tensor:
        """Logits [..., V] (model dtype) of final states [..., H], scaled and softcapped as the model does."""
        logits = self.head(last_hidden.to(self.head.weight.dtype))
        logits = (
            logits * getattr(self.config, "logit_scale", 1.0) / getattr(self.config, "logits_scaling", 1.0)
        )
        cap = getattr(self.config, "final_logit_softcapping", None)
        return cap * torch.tanh(logits / cap) if cap else logits

    @together
    @torch.no_grad()
    def check_head(self) -> None:
        """Raise ``ConfigError`` unless the head on the last state gives the model's own logits."""
        ids = torch.tensor([[self.eos[0]]], device=self.device)
        try:
            expected = self.model(input_ids=ids, use_cache=False).logits.float()
        except RuntimeError as error:
            if self.group is None:
                raise
            raise ConfigError(
                f"target.tensor_parallel={self.group.size}: transformers cannot run {type(self.model).__name__} on "
                f"several ranks: {error}"
            ) from error
        got = self.logits(self.run(ids).last_hidden).float()
        if not torch.allclose(got, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())):
            raise ConfigError(
                f"{self.folder}: the head on the final state differs from the model's logits by "
                f"{float((got - expected).abs().max()):.3g}; {type(self.model).__name__} is not supported"
            )

    def _check_unpadded(self, attention_mask: Tensor | None) -> None:
        """Padding on the left would enter what the layers compress, and change the answer."""
        if attention_mask is not None and not bool(attention_mask.all()):
            raise ConfigError(
                f"{type(self.model).__name__} cannot answer prompts of different lengths together: set "
                "answers.batch_size=1, or let a server answer (answers=openai)"
            )

    def _hook(self, tap: int) -> None:
        """Keep the output of decoder layer ``tap``, or the input of the first one for -1."""

        def keep_output(_: nn.Module, __: Any, output: Any) -> None:
            self._tapped[tap] = _one_stream(output[0] if isinstance(output, tuple) else output)

        def keep_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._tapped[tap] = _one_stream(args[0] if args else kwargs["hidden_states"])

        if tap < 0:
            self.decoder.layers[0].register_forward_pre_hook(keep_input, with_kwargs=True)
        else:
            self.decoder.layers[tap].register_forward_hook(keep_output)


def _one_stream(state: Tensor) -> Tensor:
    """[B, S, H] of a layer's state: itself, or the mean over the streams of [B, S, streams, H]."""
    return state.mean(dim=2) if state.dim() == 4 else state


def _check_windows(cache: Any, drop: int, length: int) -> None:
    """transformers' crop gives a window with holes when more is taken back than it has recorded."""
    for layer in cache.layers:
        if getattr(layer, "is_sliding", False) and layer.is_initialized:
            needed = drop + min(layer.sliding_window - 1, length)
            if layer.keys.shape[-2] < needed:
                raise ValueError(
                    f"crop: the sliding window no longer holds what follows position {length}: it needs {needed} "
                    f"positions, and {layer.keys.shape[-2]} were kept by the last crop"
                )


def _check_heads(target: Target, size: int) -> None:
    """transformers divides the key projection into equal parts, and a part of a head is none."""
    if not any(rule.endswith("k_proj") for rule in target.model.tp_plan):
        return
    for number, layer in enumerate(target.decoder.layers):
        projection = getattr(layer.self_attn, "k_proj", None)  # None: this layer reads the keys of another
        heads = projection.out_features // layer.self_attn.head_dim if projection is not None else 0
        if heads % size:
            raise ConfigError(
                f"target.tensor_parallel={size}: expected a number that divides the key heads of every layer, but "
                f"layer {number} of {target.folder} has {heads}"
            )


def _load_model(cfg: TargetConfig, folder: Path, group: Group | None) -> Any:
    """The model on its device, or this rank's part of it."""
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    options: dict[str, Any] = {"dtype": dtype_of(cfg), "trust_remote_code": cfg.trust_remote_code}
    if cfg.attention != "auto":
        options["attn_implementation"] = cfg.attention
    if group is not None:
        options["distributed_config"] = DistributedConfig(tp_size=group.size, tp_plan="auto")
    with _quiet_transformers():
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(folder, **options)
        except (ValueError, ImportError) as error:
            keys = f"target.attention={cfg.attention}, target.tensor_parallel={cfg.tensor_parallel}"
            raise ConfigError(f"target.path={folder}: transformers cannot load it with {keys}: {error}") from error
    return model.to(device_of(cfg)) if group is None else model


def resolve_taps(cfg: TargetConfig, num_layers: int) -> list[int]:
    """The configured taps, else ``default_taps``; raises ``ConfigError`` for layers that do not exist."""
    return _checked_taps(
        cfg.taps if cfg.taps is not None else default_taps(num_layers, cfg.num_taps), num_layers
    )


def _checked_taps(taps: list[int], num_layers: int) -> list[int]:
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
        found[layer] = {n.removeprefix(start): _read(folder, files, n).to(dtype_of(cfg)) for n in names}
    return found


def read_config(folder: Path, cfg: TargetConfig) -> Any:
    """The text config of the target in ``folder``."""
    from transformers import AutoConfig

    return text_config(AutoConfig.from_pretrained(folder, trust_remote_code=cfg.trust_remote_code))


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
