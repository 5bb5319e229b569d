"""A tokenizer, a target and configs small enough for any test, made without a download."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from pipeline.config import TargetConfig

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unused|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 272  # embedding rows, more than the tokenizer's 260 tokens
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 2048,
    "tie_word_embeddings": False, "eos_token_id": [258, 256], "pad_token_id": 256, "bos_token_id": None,
}  # fmt: skip
LAYERS, HIDDEN = 4, 32


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte (ids 0-255) and four special tokens (256-259); ChatML template; eos <|im_end|> = 258."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    return fast


def target_config(**changes: object) -> Qwen3Config:
    """Four layers of width 32, two KV heads, head size 8, 272 rows, untied head, two EOS ids."""
    values: dict[str, object] = {
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 64, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 2048,
        "tie_word_embeddings": False, "eos_token_id": [258, 256], "pad_token_id": 256, "bos_token_id": None,
    }  # fmt: skip
    return Qwen3Config(**(values | changes))


def located(folder: Path, **changes: object) -> TargetConfig:
    """The config section of the target in ``folder``: fp32, on the CPU."""
    values: dict[str, object] = {"name": "tiny", "path": str(folder), "dtype": "float32", "device": "cpu"}
    return TargetConfig(**(values | changes))  # type: ignore[arg-type]


def save_target(folder: Path, seed: int = 0, scale: float = 6.0, **changes: object) -> Path:
    """Write a random fp32 target and its tokenizer. ``scale`` times larger weights make its choices clear."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(target_config(**changes)).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(scale)
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def drafter(algorithm: str = "dspark", **changes: object):
    """A drafter's config with blocks of 7 (depth 2, rank 8 for dspark). ``changes`` are fields of DrafterConfig."""
    from pipeline.config import DrafterConfig
    from pipeline.drafts.algorithms import ALGORITHMS

    values: dict[str, object] = {"depth": 2, "markov_rank": 8} | ALGORITHMS[algorithm].fixed | changes
    return DrafterConfig(name=algorithm, algorithm=algorithm, **values)  # type: ignore[arg-type]


def target_tensors(rows: int = VOCABULARY, config: object = None) -> SimpleNamespace:
    """Random TargetTensors in bf16 with a final norm of 1.5; ``config`` may be another target's."""
    g = torch.Generator().manual_seed(3)
    return SimpleNamespace(
        embedding=torch.randn(rows, HIDDEN, generator=g).bfloat16(),
        head=torch.randn(rows, HIDDEN, generator=g).bfloat16(),
        final_norm=torch.full((HIDDEN,), 1.5),
        config=config or target_config(),
    )


def draft(
    algorithm: str = "dspark",
    seed: int = 0,
    target: object = None,
    ids: torch.Tensor | None = None,
    **changes,
):
    """An untrained fp32 draft for the tiny target, by ``drafter(algorithm, **changes)``.

    ``ids`` are a reduced draft vocabulary. The mask token is 260, the taps are [0, 2].
    """
    from pipeline.drafts import registry

    torch.manual_seed(seed)
    how, config = drafter(algorithm, **changes), target or target_config()
    reduced = None if ids is None else len(ids)
    taps = [[0, 2][i] for i in registry.chosen_taps(how, [0, 2])]
    made = registry.ALGORITHMS[algorithm](
        registry.draft_config(how, config, VOCABULARY, taps, 260, reduced),
        registry.FAMILIES[registry.family_of(how, config)],
    )
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.3)
            elif "norm" not in name:
                weight.normal_(std=0.1)
    if ids is not None:
        head = torch.randn(VOCABULARY, HIDDEN)
        made.load_state_dict(registry.head_tensors(made, head, ids), strict=False)
    return made


def batch(lengths: list[int], seed: int = 0, taps: int = 2):
    """Random samples, padded to the longest, whose tokens from position 3 on are answers."""
    from pipeline.drafts.base import Batch

    g = torch.Generator().manual_seed(seed)
    longest, count = max(lengths), len(lengths)
    positions = torch.arange(longest)
    inside = positions < torch.tensor(lengths)[:, None]
    return Batch(
        input_ids=torch.randint(0, 256, (count, longest), generator=g) * inside,
        loss_mask=inside & (positions >= 3),
        lengths=torch.tensor(lengths),
        hidden=torch.randn(count, longest, taps * HIDDEN, generator=g) * inside[..., None],
        last_hidden=torch.randn(count, longest, HIDDEN, generator=g) * inside[..., None],
        samples=torch.arange(count),
    )
