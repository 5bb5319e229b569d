"""Which drafters there are, and how a new draft is made for a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, Qwen3Config

from pipeline.drafts import bigram
from pipeline.drafts.base import Draft
from pipeline.drafts.dspark import DSpark

if TYPE_CHECKING:
    from pipeline.config import DrafterConfig
    from pipeline.target import TargetTensors

ALGORITHMS: dict[str, type[Draft]] = {"dspark": DSpark}
ARCHITECTURES: dict[str, type[Draft]] = {"Qwen3DSparkModel": DSpark}
OTHER_TAPS = 0.1  # scale of the random part of fc where the draft starts from the target's layers
# Fields of the target's text config that describe the draft too.
SHARED = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "hidden_act",
    "max_position_embeddings", "rms_norm_eps", "rope_parameters", "pad_token_id", "bos_token_id", "eos_token_id",
)  # fmt: skip


def draft_config(
    drafter: DrafterConfig, target: PretrainedConfig, rows: int, taps: list[int], mask_token_id: int
) -> Qwen3Config:
    """The draft's config: the target's sizes (``rows``: its embedding rows) and the drafter's choices."""
    shared = {name: getattr(target, name) for name in SHARED if getattr(target, name, None) is not None}
    head_dim = getattr(target, "head_dim", None) or target.hidden_size // target.num_attention_heads
    own: dict[str, Any] = dict(
        architectures=["Qwen3DSparkModel"],
        vocab_size=rows,
        head_dim=head_dim,
        attention_bias=False,
        tie_word_embeddings=False,
        num_hidden_layers=drafter.depth,
        num_target_layers=target.num_hidden_layers,
        layer_types=["full_attention"] * drafter.depth,
        target_layer_ids=list(taps),
        block_size=drafter.block_size,
        mask_token_id=mask_token_id,
        markov_rank=drafter.markov_rank,
        markov_head_type=drafter.markov_head,
        enable_confidence_head=drafter.confidence_head,
        confidence_head_with_markov=drafter.confidence_head and drafter.markov_rank > 0,
    )
    return Qwen3Config(**shared, **own)


def build(
    drafter: DrafterConfig,
    tensors: TargetTensors,
    taps: list[int],
    mask_token_id: int,
    layers: dict[int, dict[str, Tensor]] | None = None,
    pairs: tuple[Tensor, Tensor] | None = None,
) -> Draft:
    """A new draft (fp32; embedding and head are the target's own tensors, frozen), seeded by torch's generator.

    ``layers``: raw weights of the target's last decoder layers, by layer number, where ``drafter.init.layers`` asks
    for them. ``pairs``: previous and following answer tokens, int64 [n] each, where ``drafter.init.bigram`` is set.
    """
    config = draft_config(drafter, tensors.config, len(tensors.embedding), taps, mask_token_id)
    draft = ALGORITHMS[drafter.algorithm](config)
    _initialise(draft, config.initializer_range)
    own: dict[str, Any] = {"embed_tokens.weight": tensors.embedding, "lm_head.weight": tensors.head}
    if drafter.init.final_norm:
        own["norm.weight"] = tensors.final_norm.float()
    if drafter.init.layers and layers:
        own |= _from_target_layers(draft, layers)
    if drafter.init.bigram is not None and pairs is not None and drafter.markov_rank:
        w1, w2 = bigram.fit(*pairs, config.vocab_size, drafter.markov_rank, drafter.init.bigram)
        own |= {"markov_head.markov_w1.weight": w1, "markov_head.markov_w2.weight": w2}
    draft.load_state_dict(own, strict=False, assign=True)
    draft.freeze()
    return draft


def _initialise(draft: Draft, std: float) -> None:
    """Normal weights of the target's own spread for every product, as transformers starts a model."""
    for module in draft.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            torch.nn.init.normal_(module.weight, std=std)
            if isinstance(module, torch.nn.Linear) and module.bias is not None:
                torch.nn.init.zeros_(module.bias)


def _from_target_layers(draft: Draft, layers: dict[int, dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors of the target's last layers under the draft's names (what the draft has no place for is left out).

    The context starts as what the first of these layers reads: fc passes the tap nearest below it (the other taps
    start small), normed as that layer norms its input. Where that very output is tapped, keys and values of the
    context are the target's own from the first step.
    """
    shapes = {name: value.shape for name, value in draft.state_dict().items()}
    taken = {}
    for number, source in enumerate(sorted(layers)):
        for name, value in layers[source].items():
            place = f"layers.{number}.{name}"
            if shapes.get(place) == value.shape:
                taken[place] = value.float()
    fc = OTHER_TAPS * draft.get_parameter("fc.weight").detach()
    width, taps = len(fc), draft.config.target_layer_ids
    nearest = min(range(len(taps)), key=lambda i: abs(taps[i] - (min(layers) - 1)))
    fc[:, nearest * width : (nearest + 1) * width] += torch.eye(width)
    taken["fc.weight"] = fc
    if "layers.0.input_layernorm.weight" in taken:
        taken["hidden_norm.weight"] = taken["layers.0.input_layernorm.weight"].clone()
    return taken
