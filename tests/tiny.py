"""A tokenizer, a target and configs small enough for any test, made without a download."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unused|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 272  # embedding rows; the tokenizer has 260 tokens, so that rows beyond it exist
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


def save_target(folder: Path, seed: int = 0, scale: float = 6.0, **changes: object) -> Path:
    """Write a random target (fp32; weights ``scale`` times wider, so that its choices are clear) and its tokenizer."""
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


def draft(seed: int = 0, **changes: object):
    """An untrained DSpark draft for the tiny target (fp32, depth 2, block of 7, rank 8)."""
    from pipeline.drafts.registry import ARCHITECTURES

    torch.manual_seed(seed)
    values: dict[str, object] = {
        "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2, "block_size": 7, "markov_rank": 8,
        "markov_head_type": "vanilla", "enable_confidence_head": True, "confidence_head_with_markov": True,
        "mask_token_id": 260, "target_layer_ids": [0, 2], "num_target_layers": LAYERS,
        "architectures": ["Qwen3DSparkModel"],
    }  # fmt: skip
    made = ARCHITECTURES["Qwen3DSparkModel"](target_config(**(values | changes)))
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.3)
            elif "norm" not in name:
                weight.normal_(std=0.1)
    return made


def batch(lengths: list[int], seed: int = 0, taps: int = 2):
    """Random samples whose tokens from position 3 on are answers, padded to the longest."""
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
