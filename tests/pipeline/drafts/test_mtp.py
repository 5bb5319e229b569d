"""MTP, compared with transformers' own layer over the whole prefix."""

import tiny
import torch
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from pipeline.drafts import registry
from pipeline.drafts.base import Blocks


def theirs(draft):
    """The target family's layer with the draft's weights."""
    draft.config._attn_implementation = "eager"
    layer = Qwen3DecoderLayer(draft.config, 0)
    layer.load_state_dict(draft.layer.state_dict())
    return layer


@torch.no_grad()
def test_mtp_equals_a_plain_implementation() -> None:
    """For each draft, DeepSeek-V3's module makes one causal pass of the target's layer over all pairs so far.

    The pairs have the target's states up to anchor - 1, then the draft's own. The last output is the draft's state.
    """
    draft, batch = tiny.draft("mtp", num_taps=0), tiny.batch([20], taps=0)
    layer, anchor = theirs(draft), 9
    ids, w = batch.input_ids[0], draft.state_dict()

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w[name]

    states, found = list(batch.last_hidden[0, :anchor]), []
    for k in range(7):
        embedded = w["embed_tokens.weight"][ids[1 : anchor + 1 + k]]  # the token after each pair's position
        both = torch.cat([norm(embedded, "enorm.weight"), norm(torch.stack(states), "hnorm.weight")], -1)
        x, positions = (both @ w["eh_proj.weight"].T)[None], torch.arange(anchor + k)[None]
        cos, sin = (t.squeeze(2) for t in draft.rotary(x, positions, "full_attention"))
        causal = torch.full((anchor + k,) * 2, float("-inf")).triu(1)[None, None]
        out = layer(x, position_embeddings=(cos, sin), attention_mask=causal)[0, -1]
        states.append(norm(out, "norm.weight"))
        found.append(states[-1])
    got = draft.block_states(batch, Blocks(torch.tensor([[anchor]]), torch.tensor([[True]])))
    assert torch.allclose(got[0, 0], torch.stack(found), atol=1e-4)


def test_mtp_may_read_no_tap() -> None:
    draft = registry.build(tiny.drafter("mtp", num_taps=0), tiny.target_tensors(), [], 260)
    assert draft.config.target_layer_ids == [] and not hasattr(draft, "fc")
