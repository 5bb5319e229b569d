from tiny_layers import config

from pipeline.drafts.families import llama, qwen3


def test_llama_norms_no_heads() -> None:
    """SGLang's and llama.cpp's Eagle3 layouts have no such tensors."""
    names = {n for n, _ in llama.DecoderLayer(config("llama"), 0).named_parameters()}
    assert names == {
        "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.o_proj.weight",
        "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
        "input_layernorm.weight", "post_attention_layernorm.weight",
    }  # fmt: skip
    more = {n for n, _ in qwen3.DecoderLayer(config("qwen3"), 0).named_parameters()} - names
    assert more == {"self_attn.q_norm.weight", "self_attn.k_norm.weight"}
