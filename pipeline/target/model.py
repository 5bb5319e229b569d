"""The frozen target at work: its tapped layers, final states, cache and logits.

Layer numbers: tap l is the *output* of decoder layer l (``hidden_states[l + 1]`` of transformers); -1 is
the embedding's output. Where a layer passes on several streams (DeepSeek-V4: [B, S, hc_mult, H]), a tap is their mean
[B, S, H]. The last hidden state is the one *after* the final norm, so that the head applied to it gives the target's
logits. Shapes: B sequences, S tokens, m taps, H hidden size, V embedding rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.config import ConfigError, TargetConfig
from pipeline.target.files import (
    checked_taps,
    device_of,
    dtype_of,
    eos_ids,
    identity,
    quiet_transformers,
    read_config,
    resolve_taps,
    text_config,
)
from pipeline.target.group import LOAD, TargetGroup, together
from pipeline.target.location import locate
from pipeline.target.rewind import RewindCache


@dataclass(frozen=True)
class States:
    """What the target computed for every token."""

    hidden: Tensor  # [B, S, m*H]: outputs of the tapped layers
    last_hidden: Tensor  # [B, S, H]: after the final norm


class Target:
    """The frozen model with hooks on its tapped layers (``load`` makes one).

    Not in inference mode: transformers' split models rebuild tensors in a way that it refuses.
    """

    def __init__(self, model: Any, folder: Path, taps: list[int], group: TargetGroup | None = None) -> None:
        self.model = model.eval().requires_grad_(False)
        self.group = group
        self.config = text_config(self.model.config)
        self.decoder: Any = self.model.get_decoder()
        self.head: Any = self.model.get_output_embeddings()
        if not hasattr(self.decoder, "layers") or self.head is None:
            raise ConfigError(f"{folder}: {type(model).__name__} has no decoder with layers and a head")
        self.folder, self.taps = folder, checked_taps(taps, len(self.decoder.layers))
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
    def load(
        cls, cfg: TargetConfig, taps: list[int] | None = None, group: TargetGroup | None = None
    ) -> Target:
        """Load the target that ``cfg`` names; ``taps`` instead of those of ``cfg`` where given.

        ``group``: the ranks that hold it together. ``ConfigError`` where ``cfg`` asks for such ranks and there is none.
        """
        if cfg.tensor_parallel > 1 and group is None:
            raise ConfigError(
                f"target.tensor_parallel={cfg.tensor_parallel}: only the capture of states runs on several ranks "
                "together; let a server answer the prompts (answers=openai), and evaluate with target.tensor_parallel=1"
            )
        folder = locate(cfg)
        if taps is None:
            taps = resolve_taps(cfg, read_config(folder, cfg).num_hidden_layers)
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
        **attention: Any,
    ) -> States:
        """States of ``input_ids`` int64 [B, S].

        ``cache`` (of ``new_cache``) is extended in place. Attention is causal, so sequences that are padded
        on the right need no ``attention_mask``: no token of theirs sees the padding. ``attention`` is passed on to
        the model's attention function (pipeline/target/ragged.py).
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
            **attention,
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

        Raises ``ValueError`` when it holds fewer, or when a sliding window has lost what the next token would see: a
        crop drops what its length does not need, so a later one cannot go back further than the runs since then.
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
        return shape_logits(self.head(last_hidden.to(self.device, self.head.weight.dtype)), self.config)

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


def shape_logits(logits: Tensor, config: Any) -> Tensor:
    """What the head gives, scaled and softcapped as the model of the text config ``config`` does."""
    scale = getattr(config, "logit_scale", 1.0) / getattr(config, "logits_scaling", 1.0)
    if scale != 1:  # a pass over all logits that most targets need not make
        logits = logits * scale
    cap = getattr(config, "final_logit_softcapping", None)
    return cap * torch.tanh(logits / cap) if cap else logits


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
        attention: Any = getattr(layer, "self_attn", None)
        projection = getattr(attention, "k_proj", None)  # None: this layer reads the keys of another
        heads = projection.out_features // attention.head_dim if projection is not None else 0
        if heads % size:
            raise ConfigError(
                f"target.tensor_parallel={size}: expected a number that divides the key heads of every layer, but "
                f"layer {number} of {target.folder} has {heads}"
            )


def _load_model(cfg: TargetConfig, folder: Path, group: TargetGroup | None) -> Any:
    """The model on its device, or this rank's part of it."""
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": dtype_of(cfg), "trust_remote_code": cfg.trust_remote_code}
    if cfg.attention != "auto":
        options["attn_implementation"] = cfg.attention
    if group is not None:
        from transformers.distributed import DistributedConfig

        options["distributed_config"] = DistributedConfig(tp_size=group.size, tp_plan="auto")
    with quiet_transformers():
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(folder, **options)
        except (ValueError, ImportError) as error:
            keys = f"target.attention={cfg.attention}, target.tensor_parallel={cfg.tensor_parallel}"
            raise ConfigError(
                f"target.path={folder}: transformers cannot load it with {keys}: {error}"
            ) from error
    return model.to(device_of(cfg)) if group is None else model
