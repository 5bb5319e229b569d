"""The frozen target with its tapped layers, final states, KV cache and logits.

Tap l is the *output* of decoder layer l (``hidden_states[l + 1]`` of transformers); tap -1 is the output of the
embedding. If a layer has several residual streams (DeepSeek-V4: [B, S, hc_mult, H]), a tap is their mean [B, S, H]. The
last hidden state is taken *after* the final norm, so that the head gives the target's logits from it.
Shapes: B sequences, S tokens, m taps, H hidden size, V embedding rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.config import ConfigError, TargetConfig
from pipeline.target.architecture import auto_class, check_usable, model_errors
from pipeline.target.files import (
    check_weights,
    checked_taps,
    device_of,
    dtype_of,
    end_ids,
    eos_ids,
    identity,
    logit_scale,
    quiet_transformers,
    read_config,
    read_whole_config,
    resolve_taps,
    text_config,
)  # fmt: skip
from pipeline.target.group import LOAD, TargetGroup, together
from pipeline.target.location import locate
from pipeline.target.rewind import RewindCache

PLAIN = {"DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer"}  # cache layers of keys and values alone
STATES = {
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
}


@dataclass(frozen=True)
class States:
    """The target's states for every token."""

    hidden: Tensor  # [B, S, m*H]: outputs of the tapped layers
    last_hidden: Tensor  # [B, S, H]: after the final norm


class Target:
    """The frozen model with hooks on its tapped layers; ``load`` makes one.

    It does not use inference mode, because transformers then cannot rebuild the tensors of a model split over ranks.
    """

    def __init__(self, model: Any, folder: Path, taps: list[int], group: TargetGroup | None = None) -> None:
        from transformers import DynamicCache

        self.model = model.eval().requires_grad_(False)
        self.group = group
        self.config = text_config(self.model.config)
        self.decoder: Any = self.model.get_decoder()
        check_usable(self.model, folder)
        self.head: Any = self.model.get_output_embeddings()
        self.folder, self.taps = folder, checked_taps(taps, len(self.decoder.layers))
        self.hidden_size: int = self.config.hidden_size
        self.vocab_size: int = self.model.get_input_embeddings().weight.shape[0]
        self.dtype: torch.dtype = self.model.dtype
        self.device: torch.device = self.model.device
        self.eos = _ends(folder)
        kinds = {type(layer).__name__ for layer in DynamicCache(config=self.model.config).layers}
        # The state of a convolution or recurrence cannot be undone token by token.
        self.rewinds: bool = self.model._is_stateful or not kinds.isdisjoint(STATES)
        self.has_plain_cache: bool = not self.rewinds and kinds <= PLAIN
        self._tapped: dict[int, Tensor] = {}
        for tap in self.taps:
            self._hook(tap)

    @classmethod
    def load(
        cls, cfg: TargetConfig, taps: list[int] | None = None, group: TargetGroup | None = None
    ) -> Target:
        """Load the target that ``cfg`` names; ``taps``, if given, replace those of ``cfg``.

        ``group`` are the ranks that share the target. Raises ``ConfigError`` if ``cfg`` needs a group but has none.
        """
        if cfg.tensor_parallel > 1 and group is None:
            raise ConfigError(
                f"target.tensor_parallel={cfg.tensor_parallel}: only the capture of states can split a target over "
                "ranks; let a server answer the prompts (answers=openai), and evaluate with target.tensor_parallel=1"
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
        """``files.identity`` of the target's files as they are now."""
        return identity(self.folder)

    @together
    @torch.no_grad()
    def run(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, cache: Any = None,
        position_ids: Tensor | None = None, **attention: Any,
    ) -> States:  # fmt: skip
        """States of ``input_ids`` int64 [B, S].

        ``cache``, made by ``new_cache``, is extended in place. Sequences that are padded on the right need no
        ``attention_mask``: attention is causal, so none of their tokens sees the padding. ``attention`` goes to the
        model's attention function (pipeline/target/ragged.py).
        """
        self._tapped.clear()
        ids, new = input_ids.to(self.device), input_ids.shape[1]
        if isinstance(cache, RewindCache):
            self._check_unpadded(attention_mask)
            ids, cache = cache.take(ids), cache.cache
        output = self.decoder(
            input_ids=ids, attention_mask=attention_mask, position_ids=position_ids, cache=cache,
            use_cache=cache is not None, **attention,
        )  # fmt: skip
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
        cache.activate_past_recording()  # else sliding-window layers drop positions that a crop needs
        return cache

    def crop(self, cache: Any, length: int) -> None:
        """Keep the first ``length`` positions of ``cache``.

        A crop also drops the positions that have left a sliding window, so a later crop can only undo the runs since
        then. Raises ``ValueError`` if the cache has fewer positions, or lacks some that the next token would see.
        """
        held = cache.get_seq_length()
        if not 0 <= length <= held:
            raise ValueError(
                f"crop: expected a length from 0 to {held}, the positions in the cache, got {length}"
            )
        if isinstance(cache, RewindCache):
            cache.crop(length)
            return
        _check_windows(cache, held - length, length)
        cache.crop(length - held)  # transformers counts the positions to drop, as a negative number

    @together
    @torch.no_grad()
    def logits(self, last_hidden: Tensor) -> Tensor:
        """Logits [..., V] in the model's dtype from final states [..., H], scaled and softcapped as in the model."""
        return shape_logits(self.head(last_hidden.to(self.device, self.head.weight.dtype)), self.config)

    @together
    @torch.no_grad()
    def check_head(self) -> None:
        """Raise ``ConfigError`` unless the head gives the model's own logits from the last state."""
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
        """Refuse padding on the left, because the layers would compress it and the answer would change."""
        if attention_mask is not None and not bool(attention_mask.all()):
            raise ConfigError(
                f"{type(self.model).__name__} cannot answer prompts of different lengths together: set "
                "answers.batch_size=1, or let a server answer (answers=openai)"
            )

    def _hook(self, tap: int) -> None:
        """Record the output of decoder layer ``tap``, or for -1 the input of the first layer."""

        def keep_output(_: nn.Module, __: Any, output: Any) -> None:
            self._tapped[tap] = _one_stream(output[0] if isinstance(output, tuple) else output)

        def keep_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._tapped[tap] = _one_stream(args[0] if args else kwargs["hidden_states"])

        if tap < 0:
            self.decoder.layers[0].register_forward_pre_hook(keep_input, with_kwargs=True)
        else:
            self.decoder.layers[tap].register_forward_hook(keep_output)


def _ends(folder: Path) -> tuple[int, ...]:
    """Ids that end an answer; without a tokenizer in ``folder``, only those in its configs."""
    from transformers import AutoTokenizer

    if not (folder / "tokenizer_config.json").is_file():
        return eos_ids(folder)
    try:
        return end_ids(folder, AutoTokenizer.from_pretrained(folder))
    except ValueError:  # the tokenizer has its own code, which needs ``target.trust_remote_code``
        return eos_ids(folder)


def shape_logits(logits: Tensor, config: Any) -> Tensor:
    """The head's logits, scaled and softcapped as in the model with the text config ``config``."""
    scale = logit_scale(config)
    if scale != 1:  # most targets do not need this pass over all logits
        logits = logits * scale
    cap = getattr(config, "final_logit_softcapping", None)
    return cap * torch.tanh(logits / cap) if cap else logits


def _one_stream(state: Tensor) -> Tensor:
    """A layer's state as [B, S, H]: unchanged, or the mean over the streams of [B, S, streams, H]."""
    return state.mean(dim=2) if state.dim() == 4 else state


def _check_windows(cache: Any, drop: int, length: int) -> None:
    """Raise ``ValueError`` if a sliding window has lost positions, where transformers' crop would leave holes."""
    for layer in cache.layers:
        if getattr(layer, "is_sliding", False) and layer.is_initialized:
            needed = drop + min(layer.sliding_window - 1, length)
            if layer.keys.shape[-2] < needed:
                raise ValueError(
                    f"crop: to go back to position {length}, the sliding window needs {needed} positions, but it holds "
                    f"{layer.keys.shape[-2]}"
                )


def _check_heads(target: Target, size: int) -> None:
    """Raise ``ConfigError`` unless each rank gets whole heads: transformers splits the keys into equal parts."""
    if not any(rule.endswith("k_proj") for rule in target.model.tp_plan):
        return
    for number, layer in enumerate(target.decoder.layers):
        attention: Any = getattr(layer, "self_attn", None)
        projection = getattr(attention, "k_proj", None)  # None if this layer reads the keys of another layer
        heads = projection.out_features // attention.head_dim if projection is not None else 0
        if heads % size:
            raise ConfigError(
                f"target.tensor_parallel={size}: expected a number that divides the key heads of every layer, but "
                f"layer {number} of {target.folder} has {heads}"
            )


def _load_model(cfg: TargetConfig, folder: Path, group: TargetGroup | None) -> Any:
    """The model on its device; with a ``group``, this rank's part of it."""
    config = read_whole_config(folder, cfg)
    check_weights(folder, config)
    options: dict[str, object] = {"dtype": dtype_of(cfg), "trust_remote_code": cfg.trust_remote_code}
    if cfg.attention != "auto":
        options["attn_implementation"] = cfg.attention
    if group is not None:
        from transformers.distributed import DistributedConfig

        options["distributed_config"] = DistributedConfig(tp_size=group.size, tp_plan="auto")
    with quiet_transformers(), model_errors(folder, cfg):
        model, found = auto_class(config).from_pretrained(folder, output_loading_info=True, **options)
    for name in sorted(found["missing_keys"]):  # transformers fills such a tensor with random numbers
        raise ConfigError(
            f"{folder}: no tensor {name} in its safetensors files, which {type(model).__name__} needs"
        )
    return model.to(device_of(cfg)) if group is None else model
