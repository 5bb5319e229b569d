"""Targets of tiny_targets.py with other attention, recurrent layers, convolutions, scaled logits, or a vision tower."""

from __future__ import annotations

from typing import Any

import tiny
import transformers as hf

NO_HEAD_DIM = {name: value for name, value in tiny.SIZES.items() if name != "head_dim"}
LINEAR = {"layer_types": ["linear_attention", "full_attention"] * 2}
DELTA = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
MLA = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
}  # fmt: skip
EXPERTS = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
    "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
}  # fmt: skip
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16}


def qwen3_next() -> Any:
    """Gated delta rules in every second layer, gated attention with partial rotary positions, experts."""
    experts = {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    }  # fmt: skip
    return hf.Qwen3NextForCausalLM(
        hf.Qwen3NextConfig(
            **tiny.SIZES, **DELTA, **experts, full_attention_interval=2, partial_rotary_factor=0.5
        )
    )


def qwen3_5() -> Any:
    """A multimodal checkpoint whose text model is loaded alone."""
    text = hf.Qwen3_5TextConfig(**tiny.SIZES, **DELTA, **LINEAR)
    vision = {
        "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32, "patch_size": 14,
    }  # fmt: skip
    config = hf.Qwen3_5Config(text_config=text.to_dict(), vision_config=vision, tie_word_embeddings=False)
    return hf.Qwen3_5ForConditionalGeneration(config)


def qwen3_vl() -> Any:
    """A multimodal class that has no text-only form; rotary positions in three sections."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    text = hf.Qwen3VLTextConfig(**tiny.SIZES, rope_parameters=rope)
    vision = {
        "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32,
        "deepstack_visual_indexes": [0],
    }  # fmt: skip
    config = hf.Qwen3VLConfig(text_config=text.to_dict(), vision_config=vision, tie_word_embeddings=False)
    return hf.Qwen3VLForConditionalGeneration(config)


def mistral3() -> Any:
    """A Mistral inside a multimodal class."""
    text = hf.MistralConfig(**tiny.SIZES, sliding_window=None)
    vision = hf.PixtralVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
    )
    config = hf.Mistral3Config(text_config=text, vision_config=vision, tie_word_embeddings=False)
    return hf.Mistral3ForConditionalGeneration(config)


def deepseek_v3() -> Any:
    """Latent attention (keys and values of different widths)."""
    return hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(**NO_HEAD_DIM | MLA, **EXPERTS, q_lora_rank=16))


def glm4_moe() -> Any:
    """Experts with shared ones; partial rotary positions."""
    return hf.Glm4MoeForCausalLM(hf.Glm4MoeConfig(**tiny.SIZES, **EXPERTS))


def glm_moe_dsa() -> Any:
    """Latent attention over the tokens that an indexer chooses."""
    own = {"q_lora_rank": 16, "index_topk": 8, "index_head_dim": 16, "index_n_heads": 32}
    return hf.GlmMoeDsaForCausalLM(hf.GlmMoeDsaConfig(**NO_HEAD_DIM | MLA, **EXPERTS, **own))


def minimax_m2() -> Any:
    """Experts in every layer, norms over all heads together."""
    return hf.MiniMaxM2ForCausalLM(
        hf.MiniMaxM2Config(**tiny.SIZES, num_local_experts=4, num_experts_per_tok=2)
    )


def granite() -> Any:
    """Logits divided by 4, embeddings, residuals and scores with factors of their own."""
    scales = {"logits_scaling": 4.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.5}
    return hf.GraniteForCausalLM(hf.GraniteConfig(**NO_HEAD_DIM, **scales))


def cohere2() -> Any:
    """Logits times 0.25, tied; windows with rotary positions, full attention without."""
    own = {"logit_scale": 0.25, "tie_word_embeddings": True, "sliding_window": 8, "eos_token_id": 258}
    return hf.Cohere2ForCausalLM(hf.Cohere2Config(**NO_HEAD_DIM | own))


def granite_hybrid() -> Any:
    """Mamba in every second layer, attention without positions, logits divided by 4."""
    own = {"layer_types": ["mamba", "attention"] * 2, "num_local_experts": 0, "shared_intermediate_size": 64}
    config = hf.GraniteMoeHybridConfig(**NO_HEAD_DIM, **MAMBA, **own, logits_scaling=4.0)
    return hf.GraniteMoeHybridForCausalLM(config)


def falcon_h1() -> Any:
    """Mamba beside attention in every layer, logits with a factor."""
    own = {"lm_head_multiplier": 0.25, "mamba_d_ssm": 64, "mamba_n_groups": 1, "mamba_chunk_size": 8}
    return hf.FalconH1ForCausalLM(hf.FalconH1Config(**NO_HEAD_DIM, **MAMBA, **own))


def nemotron_h() -> Any:
    """Layers of one kind each: Mamba, attention without positions, MLP; other names for embedding and norm."""
    own = {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1}
    return hf.NemotronHForCausalLM(
        hf.NemotronHConfig(**tiny.SIZES | {"num_hidden_layers": 5}, **own, hybrid_override_pattern="M*M-*")
    )


def lfm2() -> Any:
    """Short convolutions in every second layer."""
    return hf.Lfm2ForCausalLM(hf.Lfm2Config(**NO_HEAD_DIM, layer_types=["conv", "full_attention"] * 2))


def kimi_linear() -> Any:
    """Gated delta rules, latent attention without positions, experts."""
    own = {"linear_head_dim": 8, "linear_num_heads": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
    return hf.KimiLinearForCausalLM(
        hf.KimiLinearConfig(**NO_HEAD_DIM | MLA, **LINEAR, **own, moe_intermediate_size=16)
    )


ALL = (
    qwen3_next, qwen3_5, qwen3_vl, mistral3, deepseek_v3, glm4_moe, glm_moe_dsa, minimax_m2, granite, cohere2,
    granite_hybrid, falcon_h1, nemotron_h, lfm2, kimi_linear,
)  # fmt: skip
