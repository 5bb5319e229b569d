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
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", clean_up_tokenization_spaces=False
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
