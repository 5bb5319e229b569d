"""A tiny random target of every family (width 32, 3 to 6 layers, 272 rows), with the tokenizer of tiny.py.

Windows have 8 tokens, and compressors close windows of 4 and 8 tokens, so that any sentence is longer.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import unittest.mock
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tiny
import tiny_hybrids
import torch
import transformers as hf

from data_specs.errors import UserError
from pipeline.config import Config
from pipeline.ranks import free_port
from pipeline.store.artifacts import Store

CAP = 1.0  # because logits would reach 1.2
WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}
GEMMA = {"tie_word_embeddings": True, "eos_token_id": 258, **WINDOWS}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def qwen3() -> Any:
    """An untied head, two EOS ids, and 12 more embedding rows than tokens."""
    return hf.Qwen3ForCausalLM(hf.Qwen3Config(**tiny.SIZES))


def qwen3_moe() -> Any:
    """Each token uses two of four experts, in all layers but the first."""
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "mlp_only_layers": [0],
    }
    return hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**tiny.SIZES | experts | {"num_hidden_layers": 3}))


def llama() -> Any:
    """A Llama with Llama 3's rotary scaling."""
    rope = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    }  # fmt: skip
    return hf.LlamaForCausalLM(hf.LlamaConfig(**tiny.SIZES, rope_parameters=rope))


def smollm2() -> Any:
    """A Llama whose head is tied to the embedding; one EOS id."""
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(**tiny.SIZES | {"tie_word_embeddings": True, "eos_token_id": 258})
    )


def smollm3() -> Any:
    """Every second layer has no rotary positions; the head is tied."""
    config = hf.SmolLM3Config(**tiny.SIZES | {"tie_word_embeddings": True}, no_rope_layer_interval=2)
    return hf.SmolLM3ForCausalLM(config)


def gemma3() -> Any:
    """Text only, with a scaled and tied embedding, windows, rotary settings by layer type, and capped logits."""
    return hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**tiny.SIZES | GEMMA, final_logit_softcapping=CAP))


def gemma3_multimodal() -> Any:
    """A text config inside a multimodal one, as in gemma-3-4b to 27b."""
    vision = hf.SiglipVisionConfig(**VISION, image_size=28, patch_size=14)
    text = hf.Gemma3TextConfig(**tiny.SIZES | GEMMA)
    config = hf.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, tie_word_embeddings=True
    )
    return hf.Gemma3ForConditionalGeneration(config)


def gemma4() -> Any:
    """As E2B and E4B: inputs by layer, two last layers that use the keys of others, wider heads in full layers."""
    layers = ["sliding_attention", "full_attention"] * 3
    own = {"num_hidden_layers": 6, "layer_types": layers, "num_kv_shared_layers": 2, "global_head_dim": 16}
    inputs = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": tiny.VOCABULARY}
    text = hf.Gemma4TextConfig(**tiny.SIZES | GEMMA | own | inputs, final_logit_softcapping=CAP)
    return hf.Gemma4ForConditionalGeneration(
        hf.Gemma4Config(text_config=text, vision_config=None, audio_config=None)
    )


def gemma4_unified() -> Any:
    """As 12B: one projection for keys and values, and one wide key head in full layers."""
    own = {"global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
    text = hf.Gemma4UnifiedTextConfig(**tiny.SIZES | GEMMA | own, final_logit_softcapping=CAP)
    return hf.Gemma4UnifiedForConditionalGeneration(
        hf.Gemma4UnifiedConfig(text_config=text, vision_config=None, audio_config=None)
    )


def gpt_oss() -> Any:
    """Attention sinks, windows in every second layer, and experts with biases."""
    layers = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8}
    rope = {
        "rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": False, "original_max_position_embeddings": 64,
    }  # fmt: skip
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return hf.GptOssForCausalLM(hf.GptOssConfig(**tiny.SIZES | layers | experts, rope_parameters=rope))


def deepseek_v4() -> Any:
    """Four residual streams, two kinds of routing, and layers with windows, heavy compression and sparse compression.

    With few index heads, the indexer's ReLU gives many entries the score 0. Which of them are the best three would then
    depend on how many there are, and the model would not even agree with a longer run of itself.
    """
    layers = ["sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention"] * 2
    own: dict[str, Any] = {
        "num_hidden_layers": 6, "num_key_value_heads": 1, "head_dim": 16, "layer_types": layers,
        "compress_rates": {"heavily_compressed_attention": 8, "compressed_sparse_attention": 4},
        "sliding_window": 8, "index_topk": 3, "index_n_heads": 16, "index_head_dim": 8, "hc_mult": 4,
        "q_lora_rank": 16, "o_lora_rank": 8, "o_groups": 2, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "mlp_layer_types": ["hash_moe"] * 2 + ["moe"] * 4,
        "partial_rotary_factor": 0.5,
    }  # fmt: skip
    sizes = {name: value for name, value in tiny.SIZES.items() if name != "intermediate_size"}
    model = hf.DeepseekV4ForCausalLM(hf.DeepseekV4Config(**sizes | own))
    for name, table in model.named_buffers():
        if name.endswith("tid2eid"):  # the experts of each token; zeros until a checkpoint fills it
            table.copy_(torch.rand(len(table), 4).argsort(-1)[:, :2])
    return model


FAMILIES: dict[str, Callable[[], Any]] = {
    make.__name__: make
    for make in (
        qwen3, qwen3_moe, llama, smollm2, smollm3, gemma3, gemma3_multimodal, gemma4, gemma4_unified, gpt_oss,
        deepseek_v4, *tiny_hybrids.ALL,
    )
}  # fmt: skip


# Families whose chain runs with the slow tests: another of the same kind runs with the quick ones.
SLOW = {
    "qwen3_moe",
    "smollm3",
    "gemma3_multimodal",
    "gemma4_unified",
    "cohere2",
    "glm4_moe",
    "minimax_m2",
    "mistral3",
    "granite",
    "qwen3_5",
    "glm_moe_dsa",
    "kimi_linear",
    "falcon_h1",
}


def save(family: str, folder: Path, seed: int = 0) -> Path:
    """Write the random fp32 target of ``family``. Weights are ten times larger, so that its choices are clear.

    A tied embedding is only three times larger, because otherwise every token's best successor would be itself. Rows of
    special tokens and beyond are small, so that answers consist of bytes and end at their limit.
    """
    torch.manual_seed(seed)
    model = FAMILIES[family]().float().eval()
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(3.0 if weight is embedding and weight is head else 10.0)
        head[256:] *= 0.1
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


# --- ranks that capture together ---


def capture_rank(configs: Sequence[Config], environment: dict[str, str], said: Path) -> None:
    """Capture ``configs`` one after another as one rank, and write the outcome of each to the file ``said``."""
    from stages.cache.capture import run_capture

    os.environ.update(environment)
    torch.set_num_threads(1)
    results = []
    for config in configs:
        store = Store(config.artifacts)
        try:
            made = run_capture(config, store, store.resolve("answers", f"tiny_{config.data.name}"))
            results.append(made.reference if made else "nothing")
        except UserError as error:
            results.append(f"{type(error).__name__}: {error}")
    said.write_text(json.dumps(results))


def capture_together(configs: Sequence[Config], ranks: int, folder: Path) -> list[list[str]]:
    """The outcome of ``configs`` on each of ``ranks`` processes: a reference or an error."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stages.train.loop", "stages.cache.capture", "deepspeed", "zarr"])
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    processes = [
        context.Process(
            target=capture_rank,
            args=(configs, {**shared, "RANK": str(i), "LOCAL_RANK": str(i)}, folder / f"rank{i}.json"),
        )
        for i in range(ranks)
    ]
    with unittest.mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        for process in processes:
            process.start()
    for process in processes:
        process.join(timeout=120)
        process.kill()
    return [json.loads((folder / f"rank{i}.json").read_text()) for i in range(ranks)]
